"""One folder per microservice; `runtime` is the shell they share. Services meet only through messages."""
