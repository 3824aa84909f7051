"""What is agreed between the program that fetches a bucket (services/agent/bucket.py) and who starts it. Pure, and of
nothing but words and numbers: that program starts in a moment.
"""

from typing import Final

BUCKET_BYTES: Final = 10 * 1024**3
"""Of one bucket, as of one repository (clone.py)."""
LEAST_MEMORY: Final = "128Mi"
"""Of a container that fetches a bucket."""
NOT_FETCHED: Final = "s3"
"""Reason of a run that failed because a bucket could not be fetched."""
KEY_ID, SECRET = "MUSTER_S3_KEY_ID", "MUSTER_S3_SECRET"
"""Variables of the access key; without them requests are not signed."""
