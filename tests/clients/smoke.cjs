// The official npm client against a running server: SLUICE_URL=http://127.0.0.1:8000 node smoke.cjs
const assert = require("node:assert");
const OpenAI = require("openai");

const options = { apiKey: "none", baseURL: `${process.env.SLUICE_URL}/v1` };

async function models(client) {
  const names = [];
  for await (const model of client.models.list()) names.push(model.id);
  assert(names.length > 0);
  return names[0];
}

async function wholeChat(client, model) {
  const messages = [{ role: "user", content: "Say hello." }];
  const answer = await client.chat.completions.create({ model, messages, max_tokens: 8, temperature: 0 });
  assert.equal(answer.object, "chat.completion");
  assert(answer.choices[0].message.content.length > 0);
  assert(answer.usage.completion_tokens <= 8);
  return answer.choices[0].message.content;
}

async function streamedChat(client, model) {
  const messages = [{ role: "user", content: "Say hello." }];
  const stream = await client.chat.completions.create({
    model, messages, max_tokens: 8, temperature: 0, stream: true, stream_options: { include_usage: true },
  });
  let text = "";
  let usage = null;
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert(usage.total_tokens > 0);
  return text;
}

async function completion(client, model) {
  const answer = await client.completions.create({ model, prompt: ["One, two,", "A, B,"], max_tokens: 4 });
  assert.deepEqual(answer.choices.map((choice) => choice.index), [0, 1]);
}

// A deadline that cannot be met must reach the caller at once, not after the client's retries.
async function refusal(client, model) {
  let requests = 0;
  const counting = new OpenAI({ ...options, fetch: (...args) => (requests++, fetch(...args)) });
  const headers = { "x-slo-ttft-ms": "20" };
  const request = { model, prompt: "one word after another ".repeat(100), max_tokens: 4 };
  await assert.rejects(counting.completions.create(request, { headers }), (error) => {
    assert.equal(error.status, 400);
    assert.equal(error.code, "deadline_unsatisfiable");
    return true;
  });
  assert.equal(requests, 1);
}

async function main() {
  const client = new OpenAI(options);
  const model = await models(client);
  assert.equal(await streamedChat(client, model), await wholeChat(client, model));
  await completion(client, model);
  await refusal(client, model);
  console.log("ok");
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
