"""An order: who was created last goes first."""

from typing import Final

from services.scheduler.policy.orders import first_come
from services.scheduler.policy.rules import Order

ORDER: Final = Order(name="last_come", value=lambda workload, age: -first_come.value(workload, age))
