"""The limits on use, raised: tests, fault runs and benchmarks send more from one user than a person may by default."""

UNLIMITED: dict[str, object] = {
    "requests_per_second": 1_000_000,
    "requests_burst": 1_000_000,
    "project_max_living_workloads": 1_000_000_000,
    "project_max_creations_per_hour": 1_000_000_000,
    "project_max_bytes_per_hour": 2**62,
    "user_max_bytes_per_hour": 2**62,
    "follows_per_user": 1_000,
    "sessions_per_user": 1_000,
    "event_streams_per_user": 1_000,
    "http_max_connections_per_address": 1_000,
}
UNLIMITED_ENVIRONMENT = {f"MUSTER_{name.upper()}": str(value) for name, value in UNLIMITED.items()}
