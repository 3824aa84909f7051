"""The independent checker over the raw log of a running stack, read as the operator, who may only read."""

import asyncio
from collections.abc import Mapping

from muster.cli.operator_settings import operator_settings
from services.runtime.connection import connect
from tests.support.checker import Report, check, read_log
from tests.support.stack import Stack


def check_stack(stack: Stack, acknowledged: Mapping[str, str]) -> Report:
    """Read the whole log and assert that nothing in it is wrong. `acknowledged`: workload id of every 202, by name."""

    async def read() -> Report:
        nc = await connect(operator_settings(stack.data_dir), "operator")
        try:
            return check(await read_log(nc), acknowledged)
        finally:
            await nc.close()

    report = asyncio.run(read())
    assert report.violations == [], report.violations[:20]
    return report
