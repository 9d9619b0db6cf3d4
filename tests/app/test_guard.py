"""Large bodies and the framework's own uploads do not get through."""

import asyncio

import pytest

from protoflows.app.guard import Guard


async def reads_all(scope, receive, send):
    size, more = 0, True
    while more:
        message = await receive()
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": str(size).encode()})


def ask(path="/queue/join", chunks=(b"",), headers=()):
    sent, left = [], list(chunks)

    async def receive():
        body = left.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(left)}

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": list(headers)}
    asyncio.run(Guard(reads_all, 100)(scope, receive, send))
    return sent[0]["status"], sent[-1]["body"]


def test_what_is_small_passes():
    assert ask(chunks=[b"x" * 60, b"x" * 40]) == (200, b"100")


def test_what_says_that_it_is_large_is_not_read():
    assert ask(chunks=[], headers=[(b"content-length", b"101")])[0] == 413
    assert ask(chunks=[], headers=[(b"content-length", b"-1")])[0] == 413


def test_what_turns_out_large_is_cut_off():
    assert ask(chunks=[b"x" * 60, b"x" * 41, b"never asked for"])[0] == 413


@pytest.mark.parametrize("path", ["/upload", "/gradio_api/upload", "/gradio_api/upload/"])
def test_the_frameworks_uploads_are_shut(path):
    assert ask(path)[0] == 404
