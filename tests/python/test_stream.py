"""Streams, as the official client and as plain HTTP see them."""

import pytest
from conftest import events


def test_chat_stream_equals_the_whole(chat):
    stream = list(chat(stream=True, max_tokens=24))
    joined = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert joined == chat(max_tokens=24).choices[0].message.content


def test_completion_stream_equals_the_whole(complete):
    stream = complete(stream=True, max_tokens=24)
    joined = "".join(chunk.choices[0].text for chunk in stream)
    assert joined == complete(max_tokens=24).choices[0].text


def test_the_role_is_said_once_and_first(chat):
    roles = [chunk.choices[0].delta.role for chunk in chat(stream=True) if chunk.choices]
    assert roles[0] == "assistant"
    assert not any(roles[1:])


def test_one_finish_at_the_end(complete):
    reasons = [chunk.choices[0].finish_reason for chunk in complete(stream=True) if chunk.choices]
    assert reasons[-1] == "length"
    assert not any(reasons[:-1])


def test_chunks_share_id_and_time(complete):
    chunks = list(complete(stream=True))
    assert len({(chunk.id, chunk.created, chunk.model) for chunk in chunks}) == 1


def test_usage_is_the_last_chunk_if_asked_for(complete):
    chunks = list(complete(stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 12
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_usage_so_far_in_every_chunk(complete):
    options = {"include_usage": True, "continuous_usage_stats": True}
    chunks = complete(stream=True, stream_options=options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == 12


def test_no_usage_unless_asked_for(complete):
    assert all(chunk.usage is None for chunk in complete(stream=True))


def test_streams_of_several_choices_are_told_apart(complete):
    fields = {"prompt": ["One", "Two"], "n": 2, "temperature": 1.2, "seed": 5}
    texts = {}
    for chunk in complete(stream=True, **fields):
        choice = chunk.choices[0]
        texts[choice.index] = texts.get(choice.index, "") + choice.text
    whole = {choice.index: choice.text for choice in complete(**fields).choices}
    assert texts == whole


def test_stop_strings_are_cut_out_of_streams_too(complete):
    plain = complete(max_tokens=24).choices[0].text
    stop = plain[9:13]
    stream = complete(stream=True, max_tokens=24, stop=[stop])
    assert "".join(chunk.choices[0].text for chunk in stream) == plain[: plain.index(stop)]


@pytest.mark.parametrize("seed", range(3))
def test_characters_are_never_cut_in_two(complete, seed):
    # Hot sampling after emoji makes tokens that are parts of characters.
    fields = {"prompt": "🎏🎐🎑🎒🎓", "temperature": 1.8, "seed": seed, "max_tokens": 40}
    pieces = [chunk.choices[0].text for chunk in complete(stream=True, **fields)]
    assert "".join(pieces) == complete(**fields).choices[0].text


def test_logprobs_of_a_stream_are_those_of_the_whole(chat):
    fields = {"logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    streamed = []
    for chunk in chat(stream=True, **fields):
        if chunk.choices and chunk.choices[0].logprobs:
            streamed += [entry.token for entry in chunk.choices[0].logprobs.content]
    assert streamed == [entry.token for entry in chat(**fields).choices[0].logprobs.content]


def test_headers_and_ending_of_the_raw_stream(post):
    response = post("/v1/completions", {"prompt": "x", "max_tokens": 3, "stream": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert len(events(response.text)) >= 3
