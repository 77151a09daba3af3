"""The receiver: sockets in, acknowledgements out, back-pressure between them."""
