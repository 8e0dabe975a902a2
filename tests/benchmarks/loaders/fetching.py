"""How long one object takes through the link, with boto3 alone: what a cold start is held against."""

import json
import sys
import time

import boto3

CHUNK_BYTES = 1 << 20


def main() -> None:
    """Read the object of this bucket and key, and forget it."""
    bucket, key = sys.argv[1:]
    client = boto3.session.Session().client("s3")
    began = time.perf_counter()
    body = client.get_object(Bucket=bucket, Key=key)["Body"]
    num_bytes = sum(len(chunk) for chunk in body.iter_chunks(CHUNK_BYTES))
    print(json.dumps({"bytes": num_bytes, "seconds": time.perf_counter() - began}))


if __name__ == "__main__":
    main()
