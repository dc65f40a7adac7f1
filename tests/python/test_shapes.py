"""Whole answers, in OpenAI's shapes, as the official client reads them."""

import pytest


def test_chat_answer(chat, model):
    answer = chat()
    assert answer.object == "chat.completion"
    assert answer.id and answer.created > 1_600_000_000
    assert answer.model == model
    [choice] = answer.choices
    assert choice.message.role == "assistant"
    assert choice.message.content
    assert choice.finish_reason in ("stop", "length")


def test_usage_adds_up(complete):
    usage = complete(max_tokens=7).usage
    assert usage.completion_tokens == 7
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_prompt_is_counted_once_however_many_choices(complete):
    one, three = complete().usage, complete(n=3).usage
    assert one.prompt_tokens == three.prompt_tokens
    assert three.completion_tokens == 3 * one.completion_tokens


def test_completion_answer(complete):
    answer = complete()
    assert answer.object == "text_completion"
    [choice] = answer.choices
    assert (choice.index, choice.finish_reason) == (0, "length")
    assert choice.text


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_chat_takes_both_names_of_the_limit(client, model, field):
    messages = [{"role": "user", "content": "Count."}]
    answer = client.chat.completions.create(
        model=model, messages=messages, extra_body={"ignore_eos": True}, **{field: 3}
    )
    assert answer.usage.completion_tokens == 3


def test_content_may_come_in_parts(chat):
    whole = chat(messages=[{"role": "user", "content": "Name a colour."}])
    parts = [{"type": "text", "text": "Name a colour."}]
    in_parts = chat(messages=[{"role": "user", "content": parts}])
    assert in_parts.choices[0].message.content == whole.choices[0].message.content


def test_roles_change_the_prompt(chat):
    user = {"role": "user", "content": "Hello"}
    alone = chat(messages=[user]).usage.prompt_tokens
    system = {"role": "system", "content": "You are a very careful gardener."}
    assistant = {"role": "assistant", "content": "Good day."}
    assert chat(messages=[system, user, assistant, user]).usage.prompt_tokens > alone


def test_prompts_as_a_list(complete):
    together = [choice.text for choice in complete(prompt=["One, two", "Red, green"]).choices]
    alone = [complete(prompt=text).choices[0].text for text in ("One, two", "Red, green")]
    assert together == alone


def test_prompts_as_tokens(complete, http):
    text = "The capital of France is"
    tokens = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert complete(prompt=tokens).choices[0].text == complete(prompt=text).choices[0].text


def test_echo_gives_the_prompt_back(complete):
    answer = complete(prompt="Once upon", echo=True).choices[0].text
    assert answer.startswith("Once upon")
    assert answer.removeprefix("Once upon") == complete(prompt="Once upon").choices[0].text


def test_choices_are_numbered(complete):
    answer = complete(prompt=["a", "b"], n=2, temperature=1.0)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]


def test_ids_are_unique(complete):
    assert complete().id != complete().id


def test_model_can_be_retrieved(client, model):
    card = client.models.retrieve(model)
    assert (card.id, card.object) == (model, "model")


def test_tokenize_counts_what_usage_counts(complete, http):
    text = "Some words, and then some more."
    counted = http.post("/tokenize", json={"prompt": text}).json()
    assert counted["count"] == len(counted["tokens"]) == complete(prompt=text).usage.prompt_tokens


@pytest.mark.parametrize(
    "text", ["plain", "  spaces  ", "tabs\tand\nlines", "日本語 🎏 naïve", "a" * 300]
)
def test_tokens_give_the_text_back(http, text):
    tokens = http.post("/tokenize", json={"prompt": text}).json()["tokens"]
    assert http.post("/detokenize", json={"tokens": tokens}).json()["prompt"] == text


@pytest.mark.parametrize("path", ["/health", "/livez", "/readyz", "/version", "/metrics"])
def test_operators_paths_answer(http, path):
    assert http.get(path).status_code == 200
