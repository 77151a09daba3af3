"""The receiver: sockets in, acknowledgements out, back-pressure between them."""

from dolake.receiver.limiter import RateLimiter, RateLimitResult

__all__ = ["RateLimitResult", "RateLimiter"]
