"""The server refuses what is too much, and lives on."""

import socket
import urllib.error
import urllib.request

import pytest

from protoflows.app.server import serve


def ask(url, data=None, headers=None):
    request = urllib.request.Request(url, data=data, headers=headers or {})
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()
    except urllib.error.URLError as error:  # it hung up before everything was sent
        return 0, str(error).encode()


def test_it_refuses_too_much_and_lives_on(served):
    assert served.url.startswith("http://127.0.0.1:")
    status, page = ask(served.url)
    assert status == 200
    assert b"protoflows" in page
    assert ask(served.url + "gradio_api/upload", b"x" * 100)[0] == 404
    assert ask(served.url + "gradio_api/queue/join", bytes(50 * 2**20))[0] in (0, 413)
    assert ask(served.url + "gradio_api/queue/join", b"{ no json")[0] in (400, 422)
    assert ask(served.url)[0] == 200


def test_files_of_the_machine_are_not_served(served):
    for path in ("gradio_api/file=/etc/passwd", "file=/etc/passwd", "gradio_api/file=README.md"):
        assert ask(served.url + path)[0] in (403, 404)


def test_a_port_that_is_taken(workspace):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ValueError, match=f"port {port}: choose another --port"):
            serve(workspace, port=port)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"port": 0}, "port must be from 1"), ({"max_upload_mb": 0}, "max_upload_mb must be above 0"),
     ({"port": 70000}, "port must be from 1"), ({"max_upload_mb": 1e6}, "at most 1000")],
)  # fmt: skip
def test_settings_are_checked(workspace, options, words):
    with pytest.raises(ValueError, match=words):
        serve(workspace, **options)
