"""What is wrong is said, with the status that clients act on."""

import openai
import pytest
from conftest import assert_error

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"

# Takes more than 20 ms to read even where nothing else runs.
LONG_PROMPT = "one word after another " * 100

BAD_FIELDS = [
    ("temperature", -0.1),
    ("temperature", 2.1),
    ("temperature", "warm"),
    ("top_p", 0),
    ("top_p", 1.01),
    ("top_k", -2),
    ("min_p", 2),
    ("presence_penalty", 3),
    ("frequency_penalty", -2.5),
    ("repetition_penalty", 0),
    ("max_tokens", 0),
    ("max_tokens", 2.5),
    ("max_tokens", 10_000_000),
    ("n", 0),
    ("n", 1_000),
    ("stop", [""]),
    ("stop", ["x"] * 40),
    ("logit_bias", {"1": 101}),
    ("logit_bias", {"9999999": 1}),
    ("min_tokens", 50),
    ("seed", "abc"),
    ("stream", "yes"),
]


@pytest.mark.parametrize(("field", "value"), BAD_FIELDS)
def test_a_bad_value_names_its_field(post, field, value):
    body = {"prompt": "x", "max_tokens": 4, field: value}
    assert_error(post(COMPLETION, body), 400, param=field)


@pytest.mark.parametrize(
    "messages",
    [None, [], "hi", [{"role": "user"}], [{"content": "x"}], [{"role": "user", "content": 3}]],
)
def test_bad_messages(post, messages):
    assert_error(post(CHAT, {"messages": messages}), 400, param="messages")


@pytest.mark.parametrize(
    "format", [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "x"}}]
)
def test_constrained_output_is_refused_and_not_ignored(post, format):
    body = {"messages": [{"role": "user", "content": "x"}], "response_format": format}
    assert_error(post(CHAT, body), 400, param="response_format")


def test_images_are_refused_by_a_text_model(post):
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    assert_error(post(CHAT, {"messages": [{"role": "user", "content": [part]}]}), 400)


def test_a_prompt_beyond_the_context(client, model):
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model=model, prompt="word " * 20_000, max_tokens=4)
    assert caught.value.code == "context_length_exceeded"


def test_an_unknown_model_is_the_clients_not_found_error(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.completions.create(model="no-such-model", prompt="x")
    assert caught.value.code == "model_not_found"


def test_unknown_paths_have_an_error_object_too(http):
    assert_error(http.get("/v1/nothing"), 404)


def test_a_wrong_method(http):
    assert_error(http.get(CHAT), 405)
    assert http.get(CHAT).headers["allow"] == "POST"


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff\xfe", b'"text"'])
def test_a_body_that_is_no_object(http, content):
    headers = {"content-type": "application/json"}
    assert_error(http.post(COMPLETION, content=content, headers=headers), 400)


def test_the_error_does_not_repeat_a_long_input(post):
    response = post(COMPLETION, {"prompt": "x", "temperature": "y" * 50_000})
    assert_error(response, 400)
    assert len(response.content) < 2_000


def test_the_context_error_says_how_long_it_may_be(post):
    error = assert_error(post(COMPLETION, {"prompt": "x", "max_tokens": 5_000}), 400)
    assert error["code"] == "context_length_exceeded"
    assert any(word.isdigit() for word in error["message"].replace(".", " ").split())


def test_an_impossible_deadline_is_not_retried(client, model, http):
    def refused():
        lines = http.get("/metrics").text.splitlines()
        counted = [line for line in lines if line.startswith("http_requests_total{")]
        return sum(float(line.rsplit(" ", 1)[1]) for line in counted if '"4xx"' in line)

    before = refused()
    with pytest.raises(openai.BadRequestError) as caught:
        headers = {"x-slo-ttft-ms": "20"}
        eager = client.with_options(max_retries=3)
        eager.completions.create(model=model, prompt=LONG_PROMPT, extra_headers=headers)
    assert caught.value.code == "deadline_unsatisfiable"
    assert refused() == before + 1


def test_an_impossible_deadline_shows_both_times(post):
    response = post(COMPLETION, {"prompt": LONG_PROMPT, "max_tokens": 4}, x_slo_ttft_ms="20")
    error = assert_error(response, 400)
    assert error["code"] == "deadline_unsatisfiable"
    assert error["predicted_ms"] > error["budget_ms"] == 20
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("value", ["-1", "soon", "NaN", "1e300"])
def test_a_deadline_that_is_no_time(post, value):
    assert_error(post(COMPLETION, {"prompt": "x"}, x_slo_ttft_ms=value), 400, param="x-slo-ttft-ms")
