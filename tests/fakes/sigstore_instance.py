"""A small Sigstore: a certificate authority, its log of certificates and a log of signatures, with keys of its own.

What it signs is verified by Sigstore's real library against the trust root that it writes.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_IN_TOTO = "application/vnd.in-toto+json"
_SCTS = x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_NUMBERS = {"issuer": 8, "signer": 9, "runner": 11, "repository": 12, "commit": 13, "workflow": 18, "run": 21}


def _b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _spki(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _log_id(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_spki(key)).digest()


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(SHA256()))


def _usage(*, signs: bool, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=signs,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


class SigstoreInstance:
    """One instance; `attest` signs a statement in the name of a workflow's job."""

    def __init__(self) -> None:
        self.now = datetime.now(UTC).replace(microsecond=0)
        self.authority, self.certificates, self.signatures = (ec.generate_private_key(ec.SECP256R1()) for _ in "abc")
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fulcio.test")])
        self.root = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name(self.name)
            .public_key(self.authority.public_key())
            .serial_number(1)
            .not_valid_before(self.now - timedelta(days=1))
            .not_valid_after(self.now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=False, is_authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key()), critical=False)
            .sign(self.authority, SHA256())
        )

    def write_trusted_root(self, file: Path) -> Path:
        """The trust root's file."""
        since = {"start": (self.now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")}

        def log(key: ec.EllipticCurvePrivateKey, url: str) -> Mapping[str, object]:
            public = {"rawBytes": _b64(_spki(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": since}
            return {
                "baseUrl": url,
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": _b64(_log_id(key))},
            }

        root = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.signatures, "https://rekor.test")],
            "ctlogs": [log(self.certificates, "https://ctfe.test")],
            "certificateAuthorities": [
                {
                    "subject": {"organization": "test", "commonName": "fulcio.test"},
                    "uri": "https://fulcio.test",
                    "certChain": {"certificates": [{"rawBytes": _b64(self.root.public_bytes(Encoding.DER))}]},
                    "validFor": since,
                }
            ],
            "timestampAuthorities": [],
        }
        file.write_text(json.dumps(root))
        return file

    def attest(self, sha256: str, claims: Mapping[str, str], predicate: str = "https://slsa.dev/provenance/v1") -> str:
        """A bundle for an artifact, signed by a job of which the certificate makes these claims."""
        key = ec.generate_private_key(ec.SECP256R1())
        statement = {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "artifact.zip", "digest": {"sha256": sha256}}],
            "predicateType": predicate,
            "predicate": {},
        }
        payload = json.dumps(statement).encode()
        signature = _sign(key, b"DSSEv1 %d %s %d %s" % (len(_IN_TOTO), _IN_TOTO.encode(), len(payload), payload))
        certificate = self._certificate(key, claims)
        envelope = {
            "payload": _b64(payload),
            "payloadType": _IN_TOTO,
            "signatures": [{"sig": _b64(signature), "keyid": ""}],
        }
        bundle = {
            "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
            "verificationMaterial": {
                "certificate": {"rawBytes": _b64(certificate.public_bytes(Encoding.DER))},
                "tlogEntries": [self._entry(payload, signature, certificate)],
                "timestampVerificationData": {"rfc3161Timestamps": []},
            },
            "dsseEnvelope": envelope,
        }
        return json.dumps(bundle)

    def _certificate(self, key: ec.EllipticCurvePrivateKey, claims: Mapping[str, str]) -> x509.Certificate:
        """A certificate as Fulcio makes it, noted in the log of certificates."""
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([]))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(self.now - timedelta(minutes=5))
            .not_valid_after(self.now + timedelta(minutes=5))
            .add_extension(_usage(signs=True, is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key()), critical=False
            )
            .add_extension(
                x509.SubjectAlternativeName([x509.UniformResourceIdentifier("https://x.test")]), critical=True
            )
        )
        for name, value in claims.items():
            raw = value.encode()
            length = bytes((len(raw),)) if len(raw) < 0x80 else bytes((0x81, len(raw)))
            oid = x509.ObjectIdentifier(f"1.3.6.1.4.1.57264.1.{_NUMBERS[name]}")
            builder = builder.add_extension(x509.UnrecognizedExtension(oid, b"\x0c" + length + raw), critical=False)
        before = builder.sign(self.authority, SHA256())
        noted = x509.UnrecognizedExtension(_SCTS, self._noted(before.tbs_certificate_bytes))
        return builder.add_extension(noted, critical=False).sign(self.authority, SHA256())

    def _noted(self, tbs: bytes) -> bytes:
        """A list of one signed certificate timestamp (RFC 6962), as an OCTET STRING."""
        at = int(self.now.timestamp() * 1000).to_bytes(8, "big")
        issuer = hashlib.sha256(_spki(self.authority)).digest()
        signed = b"\0\0" + at + b"\0\1" + issuer + len(tbs).to_bytes(3, "big") + tbs + b"\0\0"
        signature = _sign(self.certificates, signed)
        stamp = (
            b"\0" + _log_id(self.certificates) + at + b"\0\0" + b"\4\3" + len(signature).to_bytes(2, "big") + signature
        )
        one = len(stamp).to_bytes(2, "big") + stamp
        listed = len(one).to_bytes(2, "big") + one
        return b"\x04" + (bytes((len(listed),)) if len(listed) < 0x80 else bytes((0x81, len(listed)))) + listed

    def _entry(self, payload: bytes, signature: bytes, certificate: x509.Certificate) -> Mapping[str, object]:
        """The entry of a log that holds nothing else."""
        spec = {
            "envelopeHash": {"algorithm": "sha256", "value": hashlib.sha256(payload + signature).hexdigest()},
            "payloadHash": {"algorithm": "sha256", "value": hashlib.sha256(payload).hexdigest()},
            "signatures": [{"signature": _b64(signature), "verifier": _b64(certificate.public_bytes(Encoding.PEM))}],
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}, separators=(",", ":")).encode()
        root, log_id, at = hashlib.sha256(b"\0" + body).digest(), _log_id(self.signatures), int(self.now.timestamp())
        promised = {"body": _b64(body), "integratedTime": at, "logID": log_id.hex(), "logIndex": 0}
        note = f"rekor.test - 1\n1\n{_b64(root)}\n"
        hinted = _b64(log_id[:4] + _sign(self.signatures, note.encode()))
        return {
            "logIndex": "0",
            "logId": {"keyId": _b64(log_id)},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(at),
            "inclusionPromise": {
                "signedEntryTimestamp": _b64(
                    _sign(self.signatures, json.dumps(promised, separators=(",", ":"), sort_keys=True).encode())
                )
            },
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n— rekor.test {hinted}\n"},
            },
            "canonicalizedBody": _b64(body),
        }
