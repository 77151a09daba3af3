"""The protocol between sources and the server: messages, and who may say what and when."""

from dolake.errors import MessageValidationError
from dolake.wire.messages import (
    AckMessage,
    CDCBatchMessage,
    CDCEvent,
    ConnectMessage,
    FlushRequestMessage,
    HeartbeatMessage,
    NackMessage,
    StatusMessage,
    validate_cdc_batch_message,
    validate_client_message,
)

__all__ = [
    "AckMessage",
    "CDCBatchMessage",
    "CDCEvent",
    "ConnectMessage",
    "FlushRequestMessage",
    "HeartbeatMessage",
    "MessageValidationError",
    "NackMessage",
    "StatusMessage",
    "validate_cdc_batch_message",
    "validate_client_message",
]
