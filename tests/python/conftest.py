"""Outside-in checks of the wire contract, through the official client and plain HTTP.

    SLUICE_URL=http://127.0.0.1:8000 python -m pytest tests/python

They ask a server that serves a real model, and do not depend on what the model says: answers are
compared with each other, and stop strings are cut out of them.
"""

import json
import os

import httpx
import openai
import pytest

URL = os.environ.get("SLUICE_URL", "http://127.0.0.1:8000")
TIMEOUT_S = 60


@pytest.fixture(scope="session")
def client():
    return openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=TIMEOUT_S)


@pytest.fixture(scope="session")
def http():
    with httpx.Client(base_url=URL, timeout=TIMEOUT_S) as http:
        yield http


@pytest.fixture(scope="session")
def model(client):
    return client.models.list().data[0].id


@pytest.fixture(scope="session")
def complete(client, model):
    """A greedy completion whose length is known, unless the caller says otherwise."""

    def complete(prompt="The quick brown fox", extra=None, **fields):
        extra = {"ignore_eos": True, **(extra or {})}
        fields = {"max_tokens": 12, "temperature": 0, **fields}
        return client.completions.create(model=model, prompt=prompt, extra_body=extra, **fields)

    return complete


@pytest.fixture(scope="session")
def chat(client, model):
    def chat(content="Tell me about rivers.", messages=None, extra=None, **fields):
        messages = messages or [{"role": "user", "content": content}]
        fields = {"max_tokens": 12, "temperature": 0, **fields}
        return client.chat.completions.create(
            model=model, messages=messages, extra_body=extra, **fields
        )

    return chat


@pytest.fixture(scope="session")
def post(http, model):
    """A raw POST; fills in the model."""

    def post(path, body, **headers):
        body = {"model": model, **body}
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        return http.post(path, json=body, headers=headers)

    return post


def events(text):
    """The data of each server-sent event; asserts that the stream ended well."""
    data = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
    assert data and data[-1] == "[DONE]", text[-200:]
    return [json.loads(line) for line in data[:-1]]


def assert_error(response, status, param=None):
    """OpenAI's error object with the status and, if given, the field at fault."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert {"message", "type", "param", "code"} <= error.keys()
    assert error["message"]
    if param is not None:
        assert (error["param"] or "").startswith(param), error
    return error
