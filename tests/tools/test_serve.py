"""``make serve`` ends with a sentence whatever stops it; ``make draft`` syncs first."""

import socket
import subprocess

import pytest

import pages
import serve


@pytest.mark.parametrize("port", ["abc", "0", "-1", "65536"])
def test_a_port_that_is_none_is_one_sentence(port):
    with pytest.raises(SystemExit, match=f"^expected a port from 1 .* got '{port}'$"):
        serve.main([port])


def test_a_busy_port_is_one_sentence():
    with socket.create_server(("localhost", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SystemExit, match=f"^cannot serve on port {port}: .*PORT="):
            serve.main([str(port)])


def test_ctrl_c_stops_without_a_traceback(monkeypatch, capsys):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(
        serve.http.server.ThreadingHTTPServer, "serve_forever", interrupt
    )
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    serve.main([str(port)])
    assert capsys.readouterr().out == f"http://localhost:{port}\nstopped\n"


def test_a_draft_writes_the_notebooks_first():
    """Otherwise it would show the old text of a page that was edited."""
    listed = subprocess.run(
        ["make", "-n", "draft"], cwd=pages.ROOT, capture_output=True, text=True
    ).stdout
    assert (
        0 < listed.index("tools/sync.py") < listed.index("tools/build_book.py --draft")
    )
