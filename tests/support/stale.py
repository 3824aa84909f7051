"""A leader that stood still, without the seconds that an election takes: its old answers, given again."""

from services.runtime.nats.requests import Requests


class StaleLeader(Requests):
    """Asks as ever. From `stands_still` on, the next questions to the log's leader are answered as they were before."""

    old_answers = 0

    def stands_still(self, answers: int) -> None:
        """Be wrong so many times; what was never asked before is answered rightly."""
        self.old_answers = answers

    async def ask(
        self, subject: str, payload: bytes, *, seconds: float, headers: dict[str, str] | None = None
    ) -> bytes:
        question = (subject, payload)
        to_leader = "STREAM.MSG.GET." in subject or "STREAM.INFO." in subject
        if to_leader and self.old_answers > 0 and question in self._told:
            self.old_answers -= 1
            return self._told[question]
        answer = await super().ask(subject, payload, seconds=seconds, headers=headers)
        if to_leader and self.old_answers == 0:
            self._told[question] = answer
        return answer

    @property
    def _told(self) -> dict[tuple[str, bytes], bytes]:
        return self.__dict__.setdefault("_answers", {})
