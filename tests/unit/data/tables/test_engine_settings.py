"""What engines are told about the store."""

from lakestream.data.tables.stores.engine_settings import engine_settings


def test_engines_are_told_where_the_store_is_and_never_a_secret() -> None:
    environ = {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9000", "AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s", "AWS_SESSION_TOKEN": "t",
    }  # fmt: skip
    assert engine_settings("s3://bucket/prefix", environ) == {
        "s3.endpoint": "http://127.0.0.1:9000", "s3.path-style-access": "true", "s3.region": "eu-central-1",
        "client.region": "eu-central-1",
    }  # fmt: skip


def test_amazon_itself_and_folders_need_nothing() -> None:
    assert engine_settings("s3://bucket", {"AWS_ENDPOINT_URL": ""}) == {}
    assert engine_settings("file:///data", {"AWS_REGION": "eu-central-1"}) == {}
