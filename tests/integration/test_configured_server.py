"""The Prefect server that a user has configured is asked as Prefect asks it, and its credentials are never printed."""

import http.server
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.helpers.commands import ROOT
from tests.helpers.prefect_server import clean_environment, find_free_port

QUESTION = """
from flows.prefect_server import configured_server
with configured_server() as server:
    server.begin()
    print("local:", server.local)
"""
pytestmark = pytest.mark.server


def ask(folder: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Which server a command in this environment would use: None is the configured one."""
    environment = clean_environment() | {"PREFECT_HOME": str(folder), "PYTHONPATH": str(ROOT)} | settings
    return subprocess.run([sys.executable, "-c", QUESTION], env=environment, capture_output=True, text=True)


def test_credentials_in_an_address_are_not_printed(tmp_path: Path) -> None:
    address = f"http://user:the-secret@127.0.0.1:{find_free_port()}/api?token=the-secret"
    result = ask(tmp_path, PREFECT_API_URL=address)
    assert result.returncode == 1
    assert "no Prefect server answers there" in result.stderr
    assert "the-secret" not in result.stderr + result.stdout


def test_the_server_of_the_active_profile_is_the_configured_one(tmp_path: Path) -> None:
    port = find_free_port()
    profile = f'active = "mine"\n[profiles.mine]\nPREFECT_API_URL = "http://127.0.0.1:{port}/api"\n'
    (tmp_path / "profiles.toml").write_text(profile)
    result = ask(tmp_path)
    assert f"PREFECT_API_URL is http://127.0.0.1:{port}/api, but no Prefect server answers there" in result.stderr


def test_a_server_is_believed_by_the_certificate_that_prefect_is_told(tmp_path: Path) -> None:
    with https_server(tmp_path) as (address, certificate):
        refused = ask(tmp_path, PREFECT_API_URL=f"{address}/api")
        believed = ask(tmp_path, PREFECT_API_URL=f"{address}/api", PREFECT_API_SSL_CERT_FILE=str(certificate))
    assert "no Prefect server answers there" in refused.stderr
    assert (believed.returncode, believed.stdout) == (0, "local: None\n"), believed.stderr


@contextmanager
def https_server(folder: Path) -> Iterator[tuple[str, Path]]:
    """A server that says yes to everything, with a certificate that nobody knows; its address, and the certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, "127.0.0.1")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path, key_path = folder / "certificate.pem", folder / "key.pem"
    path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(path, key_path)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Yes)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}", path
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Yes(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"true")

    def log_message(self, *_arguments: object) -> None:
        return
