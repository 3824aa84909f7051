"""Names in files where a request says ids."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.shapes import WORKLOAD_ID, Ran, Reply, Request, ShapeServer

type Muster = Callable[..., Ran]
MADE = Reply(202, {"name": "hello", "workloadId": WORKLOAD_ID, "actualPhase": "Creating"})
TEXT = """
name: hello-{number}
projectId: default
clusterId: local
templateId: nightly
assets: {{environmentId: python, computeId: null, datasourceIds: [git/code]}}
spec: {{image: a}}
"""
IDS: dict[str, Any] = {
    "projectId": "p-1",
    "clusterId": "c-1",
    "templateId": "id-of-nightly",
    "assets": {"environmentId": "id-of-python", "computeId": None, "datasourceIds": ["id-of-code"]},
}


@pytest.fixture
def assets(api: ShapeServer) -> ShapeServer:
    def called(rows: str, name: str) -> Callable[[Request], Reply]:
        found = {"meta": {"id": f"id-of-{name}", "name": name, "scope": "tenant"}}
        return lambda request: Reply(body={rows: [found] if request.query.get("name", [name]) == [name] else []})

    api.on("GET", "/workload-templates", called("templates", "nightly"))
    api.on("GET", "/asset/environment", called("environments", "python"))
    api.on("GET", "/asset/datasource/git", called("dataSources", "code"))
    return api


def test_a_file_may_say_names_where_a_request_says_ids(assets: ShapeServer, muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(TEXT.format(number=1))
    assets.on("POST", "/workloads/trainings", MADE)
    ran = muster("training", "submit", "-f", str(file))
    assert ran.code == 0, ran.err
    sent = assets.asked("POST", "/workloads/trainings")[0].body
    assert {key: sent[key] for key in IDS} == IDS


def test_each_name_is_looked_up_once_however_many_say_it(assets: ShapeServer, muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "many.yaml"
    file.write_text("---".join(f"\nkind: Training{TEXT.format(number=number)}" for number in range(3)))
    made = {"items": [{"code": 202, "id": WORKLOAD_ID} for _ in range(3)]}
    assets.on("POST", "/workloads:batch", Reply(202, made))
    ran = muster("apply", "-f", str(file))
    assert ran.code == 0, ran.err
    items = assets.asked("POST", "/workloads:batch")[0].body["items"]
    assert [{key: one[key] for key in IDS} for one in items] == [IDS] * 3
    assert len(assets.asked("GET", "/workload-templates")) == 1


def test_a_name_that_there_is_not_is_said_of_the_file(assets: ShapeServer, muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "one.yaml"
    file.write_text(f"kind: Training{TEXT.format(number=1).replace('nightly', 'nightli')}")
    ran = muster("apply", "-f", str(file))
    assert (ran.code, assets.asked("POST", "/workloads:batch")) == (3, [])
    assert f"--file: {file}: there is no template 'nightli' that you can use here" in ran.err
    assert "did you mean 'nightly'?" in ran.err


def test_a_template_names_its_assets_too(assets: ShapeServer, muster: Muster, tmp_path: Path) -> None:
    file = tmp_path / "template.yaml"
    file.write_text(
        "meta: {workloadType: Training}\nspec: {assets: {environmentId: python, datasourceIds: [git/code]}}"
    )
    assets.on("POST", "/workload-templates", Reply(202, {"meta": {"name": "t"}, "spec": {}}))
    assert (ran := muster("template", "create", "t", "-f", str(file))).code == 0, ran.err
    spec = assets.asked("POST", "/workload-templates")[0].body["spec"]
    assert spec == {"assets": {"environmentId": "id-of-python", "datasourceIds": ["id-of-code"]}}
