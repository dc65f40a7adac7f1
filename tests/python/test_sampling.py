"""Sampling parameters do what they say."""

import math

import pytest


def text(answer):
    return answer.choices[0].text


def test_greedy_is_repeatable(complete):
    assert text(complete()) == text(complete())


def test_a_seed_is_repeatable_and_another_differs(complete):
    draw = lambda seed: text(complete(temperature=1.5, seed=seed, max_tokens=24))
    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(1, 5)}) > 1


def test_choices_of_a_sampled_request_differ(complete):
    answer = complete(n=4, temperature=1.5, seed=3, max_tokens=24)
    assert len({choice.text for choice in answer.choices}) > 1


@pytest.mark.parametrize("extra", [{"top_k": 1}, {"min_p": 1.0}])
def test_only_the_likeliest_token_is_greedy(complete, extra):
    assert text(complete(temperature=1.3, seed=9, extra=extra)) == text(complete())


def test_a_tiny_top_p_is_greedy(complete):
    assert text(complete(temperature=1.3, seed=9, top_p=1e-6)) == text(complete())


def test_logit_bias_forces_a_token(complete, http):
    [token] = http.post("/tokenize", json={"prompt": " tree"}).json()["tokens"]
    answer = complete(logit_bias={str(token): 100}, max_tokens=3)
    assert text(answer) == " tree tree tree"


def test_logit_bias_forbids_a_token(complete, http):
    plain = text(complete(max_tokens=1))
    [token] = http.post("/tokenize", json={"prompt": plain}).json()["tokens"]
    assert text(complete(max_tokens=1, logit_bias={str(token): -100})) != plain


def test_a_frequency_penalty_wears_a_favourite_out(complete, http):
    [token] = http.post("/tokenize", json={"prompt": " tree"}).json()["tokens"]
    fields = {"logit_bias": {str(token): 100}, "max_tokens": 64}
    assert text(complete(**fields)) == " tree" * 64
    # 63 times 2 takes away more than the bias gives.
    assert text(complete(frequency_penalty=2.0, **fields)) != " tree" * 64


def test_a_stop_string_ends_the_text_and_stays_out_of_it(complete):
    plain = text(complete(max_tokens=24))
    stop = plain[8:11]
    answer = complete(max_tokens=24, stop=[stop])
    assert answer.choices[0].finish_reason == "stop"
    assert text(answer) == plain[: plain.index(stop)]


def test_a_stop_string_may_be_kept(complete):
    plain = text(complete(max_tokens=24))
    stop = plain[8:11]
    answer = complete(max_tokens=24, stop=stop, extra={"include_stop_str_in_output": True})
    assert text(answer) == plain[: plain.index(stop) + len(stop)]


def test_text_that_only_begins_like_a_stop_is_not_lost(complete):
    plain = text(complete())
    assert text(complete(stop=[plain[-2:] + "\u0001"])) == plain


def test_stop_token_ids_end_the_answer(complete, http):
    [token] = http.post("/tokenize", json={"prompt": " tree"}).json()["tokens"]
    answer = complete(logit_bias={str(token): 100}, max_tokens=5, extra={"stop_token_ids": [token]})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == 1


def test_min_tokens_holds_off_the_end(complete, http):
    end = http.post("/tokenize", json={"prompt": "<|im_end|>"}).json()["tokens"]
    assert len(end) == 1
    bias = {str(end[0]): 100}
    at_once = complete(logit_bias=bias, extra={"ignore_eos": False}, max_tokens=8)
    assert at_once.choices[0].finish_reason == "stop"
    later = complete(logit_bias=bias, extra={"ignore_eos": False, "min_tokens": 4}, max_tokens=8)
    assert later.usage.completion_tokens >= 4


def test_chat_logprobs_belong_to_the_text(chat):
    answer = chat(logprobs=True, top_logprobs=3, max_tokens=6, extra={"ignore_eos": True})
    entries = answer.choices[0].logprobs.content
    assert len(entries) == 6
    assert "".join(entry.token for entry in entries) == answer.choices[0].message.content
    for entry in entries:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.logprob == pytest.approx(entry.top_logprobs[0].logprob, abs=1e-4)
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1 + 1e-4


def test_completion_logprobs_have_their_own_shape(complete):
    answer = complete(logprobs=2, max_tokens=5)
    logprobs = answer.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == 5
    assert "".join(logprobs.tokens) == text(answer)
    assert all(len(top) >= 2 for top in logprobs.top_logprobs)
    assert logprobs.text_offset[0] == 0 and logprobs.text_offset == sorted(logprobs.text_offset)
