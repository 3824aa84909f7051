"""The NATS connection, requests and replies, and what the server is configured with."""
