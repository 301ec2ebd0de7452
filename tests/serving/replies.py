"""A server for tests that answers every connection by a function."""

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

STATUS = b"HTTP/1.1 200 OK\r\n"
Reply = Callable[[socket.socket, bytes], None]


@contextmanager
def answering(reply: Reply) -> Iterator[str]:
    """Answer every connection by a function of the socket and the request."""

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            Thread(target=answer, args=[connection], daemon=True).start()

    def answer(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            reply(connection, received(connection))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/completions"
        listening.shutdown(socket.SHUT_RDWR)


def received(connection: socket.socket) -> bytes:
    request = b""
    while part := connection.recv(1 << 16):
        request += part
        head, end, body = request.partition(b"\r\n\r\n")
        is_get = end and head.startswith(b"GET ")  # which has no body
        if is_get or f"content-length: {len(body)}".encode() in head.lower():
            break
    return request


def http(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def saying(body: bytes, status: str = "200 OK", *headers: str) -> Reply:
    return lambda connection, _: connection.sendall(http(body, status, *headers))
