"""Certificates for tests: an authority, and two that it signed for localhost and 127.0.0.1.

Made once, good for a hundred years, and trusted by nobody: the authority's own key was thrown away, and the keys below
guard nothing.
"""

from __future__ import annotations

from pathlib import Path

AUTHORITY = """\
-----BEGIN CERTIFICATE-----
MIIBljCCATugAwIBAgIUMLPHgGqU7jcKZ+KLZdoIUMyKj4gwCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMRG9MYWtlIHRlc3RzMCAXDTI2MTExNzIzNDAxOVoYDzIxMjYx
MDI0MjM0MDE5WjAXMRUwEwYDVQQDDAxEb0xha2UgdGVzdHMwWTATBgcqhkjOPQIB
BggqhkjOPQMBBwNCAARl3iFerxc5VyUJjdGdBOw9bb6nMEpDZ++KAkvZJ8mwzjxz
jbY+wNUR7VWFv2VwlclHemMGarUFEZpvcRPvryJeo2MwYTAdBgNVHQ4EFgQUL063
Bzrip5kMwBI99qxMwvlkvFcwHwYDVR0jBBgwFoAUL063Bzrip5kMwBI99qxMwvlk
vFcwDwYDVR0TAQH/BAUwAwEB/zAOBgNVHQ8BAf8EBAMCAQYwCgYIKoZIzj0EAwID
SQAwRgIhALlyxDEVZvbWsrDLpiWndhgB74Lh7vTU5sjTo8hlYVckAiEA8QSJ3rD3
134FcssSgdVr8F/2hYRTeLvlayM3jgdru9Y=
-----END CERTIFICATE-----
"""
CERTIFICATE_ONE = """\
-----BEGIN CERTIFICATE-----
MIIBqzCCAVGgAwIBAgIUTddUjBWjb/UVMTl79cYDqsUnnYwwCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMRG9MYWtlIHRlc3RzMCAXDTI2MTExNzIzNDAxOVoYDzIxMjYx
MDI0MjM0MDE5WjAOMQwwCgYDVQQDDANvbmUwWTATBgcqhkjOPQIBBggqhkjOPQMB
BwNCAAQmew0RzWL6/SrbHui1b1xlnatSe6j1Nu82A7b6UOzHjcETCWcmvJxsSmqV
921DL7Gi3mThDs2qkUo/qegb5GGko4GBMH8wGgYDVR0RBBMwEYIJbG9jYWxob3N0
hwR/AAABMAwGA1UdEwEB/wQCMAAwEwYDVR0lBAwwCgYIKwYBBQUHAwEwHwYDVR0j
BBgwFoAUL063Bzrip5kMwBI99qxMwvlkvFcwHQYDVR0OBBYEFOx2USSjoPO5p7+N
k+K9AHhVL61IMAoGCCqGSM49BAMCA0gAMEUCIQDNQodMdilQ0jUZ38J63O5uc3DJ
v/MgEl1Me3U4W2GjaQIgIDJNGME3WQ4+Nm00bbFA3DR38ASYt/iAfYeX72jBFvc=
-----END CERTIFICATE-----
"""
KEY_ONE = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEINIu0pSX1VugLNwHLfscDKSsRWhMev4Aghr5CAhY7M4QoAoGCCqGSM49
AwEHoUQDQgAEJnsNEc1i+v0q2x7otW9cZZ2rUnuo9TbvNgO2+lDsx43BEwlnJryc
bEpqlfdtQy+xot5k4Q7NqpFKP6noG+RhpA==
-----END EC PRIVATE KEY-----
"""
CERTIFICATE_TWO = """\
-----BEGIN CERTIFICATE-----
MIIBrDCCAVGgAwIBAgIUTddUjBWjb/UVMTl79cYDqsUnnY0wCgYIKoZIzj0EAwIw
FzEVMBMGA1UEAwwMRG9MYWtlIHRlc3RzMCAXDTI2MTExNzIzNDAyMFoYDzIxMjYx
MDI0MjM0MDIwWjAOMQwwCgYDVQQDDAN0d28wWTATBgcqhkjOPQIBBggqhkjOPQMB
BwNCAAS7DjqpshWciTfXVZJIoTS9/wdH7aAShQqkhnPgFyrEcKhJLo5WIwpchf1e
TwZaia79mjU2gAqVW6g4apNq9356o4GBMH8wGgYDVR0RBBMwEYIJbG9jYWxob3N0
hwR/AAABMAwGA1UdEwEB/wQCMAAwEwYDVR0lBAwwCgYIKwYBBQUHAwEwHwYDVR0j
BBgwFoAUL063Bzrip5kMwBI99qxMwvlkvFcwHQYDVR0OBBYEFLbfnJU/0c2Asmvt
jXCNPcSCy0/mMAoGCCqGSM49BAMCA0kAMEYCIQDPCJEUJkHPdN69ct7XT2PO1/nh
HAApjsKW0YqCWz9ffwIhAOuWpU/FodT2V0L3a6HYNW5NqkuWi7SIAVpUYdjMSdQM
-----END CERTIFICATE-----
"""
KEY_TWO = """\
-----BEGIN EC PRIVATE KEY-----
MHcCAQEEIBPyyVM7Imm4SBmANbvVzRLRuo0KPjlnRy5JgwHNgyz/oAoGCCqGSM49
AwEHoUQDQgAEuw46qbIVnIk311WSSKE0vf8HR+2gEoUKpIZz4BcqxHCoSS6OViMK
XIX9Xk8GWomu/Zo1NoAKlVuoOGqTavd+eg==
-----END EC PRIVATE KEY-----
"""


def write_certificate(folder: Path, certificate: str = CERTIFICATE_ONE, key: str = KEY_ONE) -> None:
    """As `server.pem` and `server.key`, with the authority beside them in `ca.pem`; each file changes at once."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"ca.pem": AUTHORITY, "server.key": key, "server.pem": certificate}.items():
        (folder / (name + ".new")).write_text(text)
        (folder / (name + ".new")).replace(folder / name)


TLS_SETTINGS = """\
[server]
tls_certificate = "server.pem"
tls_key = "server.key"
"""
