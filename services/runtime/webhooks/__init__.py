"""What the api and the service `webhooks` must agree on."""
