"""A proxy that knows one name: `CONNECT` to it leads to a web server of this host, with TLS.

    connect_proxy.py ADDRESS PORT NAME CERTIFICATE KEY FOLDER

It writes a line for each request to standard output, "tunnel" or "refused" and the name.
"""

from __future__ import annotations

import functools
import http.server
import socket
import socketserver
import ssl
import sys
import threading


class Tunnel(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        asked = self.rfile.readline(4096).decode("latin-1").split()
        while self.rfile.readline(4096) not in (b"\r\n", b""):
            pass
        wanted = asked[1] if asked[:1] == ["CONNECT"] else ""
        granted = wanted == f"{NAME}:443"
        print("tunnel" if granted else "refused", wanted, flush=True)
        if not granted:
            self.wfile.write(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        with socket.create_connection(("127.0.0.1", web.server_port)) as far:
            self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=carry, args=(far, self.connection))
            back.start()
            carry(self.connection, far)
            back.join()


def carry(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # the other side has gone


ADDRESS, PORT, NAME, CERTIFICATE, KEY, FOLDER = sys.argv[1:]
web = http.server.ThreadingHTTPServer(
    ("127.0.0.1", 0), functools.partial(http.server.SimpleHTTPRequestHandler, directory=FOLDER)
)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(CERTIFICATE, KEY)
web.socket = context.wrap_socket(web.socket, server_side=True)
threading.Thread(target=web.serve_forever, daemon=True).start()
socketserver.ThreadingTCPServer.allow_reuse_address = True
with socketserver.ThreadingTCPServer((ADDRESS, int(PORT)), Tunnel) as proxy:
    proxy.daemon_threads = True
    print("listening", flush=True)
    proxy.serve_forever()
