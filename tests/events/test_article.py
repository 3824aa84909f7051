"""Nouns have the article that is spoken."""

import pytest

from events.article import with_article
from events.asset import CALLED


@pytest.mark.parametrize(
    ("noun", "told"),
    [
        (CALLED["environment"], "an environment"),
        (CALLED["nfs"], "an NFS data source"),
        (CALLED["s3"], "an S3 data source"),
        (CALLED["secret"], "a Secret data source"),
        (CALLED["compute"], "a compute resource"),
    ],
)
def test_a_noun_has_the_article_that_is_spoken(noun: str, told: str) -> None:
    assert with_article(noun) == told
