"""Evaluate and submit agree on ten thousand generated requests; with --short on some hundred."""

import random
from collections.abc import Iterator

import httpx
import pytest

from tests.api.test_evaluate import agree
from tests.support.api import Served, serving
from tests.support.servers import NatsServer, PostgresServer
