"""What tests share: a real server, plain clients, a clock and a disk that can be told to fail."""
