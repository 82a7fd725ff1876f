"""An Indexed Job for workers: its manifest, the rights that it needs, and what is refused before."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import certifi
import pytest
from click.testing import CliRunner
from kubernetes.config import incluster_config
from ruamel.yaml import YAML

from loadgen.cli.run import run
from loadgen.cli.setup import grants
from loadgen.control.location import ControlPlaneLocation
from loadgen.errors import ConfigurationError
from loadgen.scenario.frozen import freeze, thaw
from loadgen.scenario.model import Scenario
from loadgen.scenario.read import parse_scenario
from loadgen.snowflake.profile_lookup import find_profile
from orchestrator.spawn.containers import require_container_settings
from orchestrator.spawn.kubernetes import KubernetesApi
from orchestrator.spawn.kubernetes_job import (
    KubernetesJob,
    job_name,
    manifest_text,
    pod_environment,
    require_kubernetes_settings,
    role_manifests,
)
from tests.kubernetes_cluster import IMAGE, checked

RUN_ID = "20261115-0200-orders-7f3a9c"
SCENARIO = """
version: 1
name: orders
connection: prod
target: {schema: PUBLIC}
workload: {statements: [{name: one, sql: SELECT 1}]}
load: {connections: 20, workers: 3, warmup: 10s, duration: 1m}
spawner: {kind: kubernetes, image: "%s", %s}
"""
CONNECTIONS = """
[prod]
account = "org-acme"
user = "me"
password = "hunter22"
database = "MINE"
schema = "OTHER"
warehouse = "my_wh"
"""


KUBECONFIG = """
current-context: c
contexts: [{name: c, context: {cluster: c, user: c}}]
clusters: [{name: c, cluster: {server: "http://here"}}]
users: [{name: c, user: {token: t}}]
"""


def scenario(more: str = "secret: snowflake", **environ: str) -> Scenario:
    return parse_scenario(SCENARIO % (IMAGE, more), source="x", environ=environ).scenario


def job(more: str = "secret: snowflake") -> KubernetesJob:
    return KubernetesJob.of_scenario(scenario(more), RUN_ID, {"LOADGEN_PIN": "none"})


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    file = tmp_path / ".snowflake" / "connections.toml"
    file.parent.mkdir()
    file.write_text(CONNECTIONS, "utf-8")
    file.chmod(0o600)
    return {"HOME": str(tmp_path)}


@pytest.mark.parametrize("wrong", [{"completions": "3"}, {"backOffLimit": 1}, {"template": None}])
def test_the_check_of_bodies_finds_what_is_wrong(wrong):
    made = job().manifest

    with pytest.raises((AssertionError, ValueError)):
        checked("V1Job", {**made, "spec": {**made["spec"], **wrong}})


# --- the manifest ----------------------------------------------------------------------------------------------------


def test_one_job_has_a_pod_for_each_worker_and_replaces_none_of_them():
    spec = checked("V1Job", job().manifest)["spec"]

    template = spec.pop("template")
    assert spec == {
        "completionMode": "Indexed",
        "completions": 3,
        "parallelism": 3,
        "backoffLimitPerIndex": 0,
        "maxFailedIndexes": 3,
        "podReplacementPolicy": "Failed",
        "ttlSecondsAfterFinished": 86_400,
        "activeDeadlineSeconds": 600 + 70 + 120 + 3_600,  # registration, load, drain, uploads
    }
    pod = template["spec"]
    assert pod["restartPolicy"] == "Never"
    assert pod["automountServiceAccountToken"] is False
    assert pod["terminationGracePeriodSeconds"] == 20 + 5 + 2 + 10
    (container,) = pod["containers"]
    assert container["command"] == ["loadgen", "worker"]
    assert container["args"] == ["--worker-group-count=3"]
    assert container["envFrom"] == [{"secretRef": {"name": "snowflake"}}]
    assert container["resources"] == {"requests": {"cpu": "1", "memory": "2Gi"}}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    values = {one["name"]: one.get("value") for one in container["env"]}
    assert values["LOADGEN_RUN_ID"] == RUN_ID
    assert values["LOADGEN_LABELS"] == "node=$(LOADGEN_NODE),pod_uid=$(LOADGEN_POD_UID)"


def test_the_settings_of_pods_are_in_the_manifest():
    made = job(
        "service_account: bench, namespace: load, node_selector: {pool: load}, labels: {team: 'on', release: 7},"
        " tolerations: [{key: dedicated, value: load, effect: NoExecute, seconds: 60}, {operator: Exists}],"
        " resources: {requests: {cpu: 500m}, limits: {memory: 4Gi}}"
    ).manifest

    checked("V1Job", made)
    pod = made["spec"]["template"]["spec"]
    assert made["metadata"]["namespace"] == "load"
    assert made["metadata"]["labels"]["team"] == "on"
    assert made["metadata"]["labels"]["release"] == "7"
    assert pod["serviceAccountName"] == "bench"
    assert pod["nodeSelector"] == {"pool": "load"}
    assert pod["tolerations"] == [
        {"key": "dedicated", "operator": "Equal", "value": "load", "effect": "NoExecute", "tolerationSeconds": 60},
        {"operator": "Exists"},
    ]
    resources = pod["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "500m", "memory": "2Gi"}, "limits": {"memory": "4Gi"}}
    assert "envFrom" not in pod["containers"][0]


def test_a_value_that_looks_like_a_reference_stays_as_it_is():
    made = dataclasses.replace(job(), environment={"LOADGEN_CONTROL_DATABASE": "A$(HOME)"})

    env = made.manifest["spec"]["template"]["spec"]["containers"][0]["env"]

    assert {"name": "LOADGEN_CONTROL_DATABASE", "value": "A$$(HOME)"} in env


@pytest.mark.parametrize("run_id", [RUN_ID, "R", "a.b_c-d", "9" * 36, "x-"])
def test_a_job_is_named_after_its_run_and_leaves_room_for_the_names_of_pods(run_id):
    name = job_name(run_id)

    assert name.strip("-") == name
    assert len(f"{name}-9999") <= 57  # Kubernetes adds a dash and five letters
    assert job_name(RUN_ID) == f"loadgen-{RUN_ID}"


@pytest.mark.parametrize("text", ["on", "No", "7", "1.5", "a: b", "x # y", "", "~", "- a", "a\nb", '"', "{}", "été"])
def test_the_text_of_a_manifest_is_read_as_it_was_meant(text):
    manifests = [job().manifest | {"x": [text, [text, {"a": text}], {}, [], 7, True, None], text: {text: text}}]

    read = list(YAML(typ="safe").load_all(f"%YAML 1.1\n---\n{manifest_text(manifests)}"))

    assert read == manifests


# --- where pods find their account -----------------------------------------------------------------------------------


def test_pods_get_the_connection_of_the_target_and_no_secret(environ):
    asked = scenario()
    place, profile = ControlPlaneLocation.of_scenario(asked), find_profile("prod", environ=environ)

    told = pod_environment(asked, place, {"LOADGEN_CONNECTION": "prod", "LOADGEN_CONTROL_DATABASE": "L"}, profile)

    assert told == {
        "LOADGEN_CONNECTION": "environment",
        "LOADGEN_CONTROL_CONNECTION": "environment",
        "LOADGEN_CONTROL_DATABASE": "L",
        "SNOWFLAKE_WAREHOUSE": "my_wh",
        "SNOWFLAKE_DATABASE": "MINE",  # the schema is the scenario's
    }
    by_identity = pod_environment(scenario("service_account: bench"), place, {}, profile)
    assert by_identity["SNOWFLAKE_ACCOUNT"] == "org-acme"
    assert "hunter22" not in str(by_identity)


def test_two_connections_keep_their_names(environ):
    asked = scenario()
    place = dataclasses.replace(ControlPlaneLocation.of_scenario(asked), connection="role")
    told = {"LOADGEN_CONNECTION": "prod", "LOADGEN_CONTROL_CONNECTION": "role"}

    assert pod_environment(asked, place, told, None) == told


@pytest.mark.parametrize(
    ("more", "connection", "control", "said", "hint"),
    [
        ("secret: s", "embedded", "prod", "embedded server of this machine, where the target is", "spawner kind local"),
        ("secret: s", "prod", "embedded", "where the control plane is", "spawner kind local"),
        ("service_account: a", "prod", "role", "different connections, and pods know neither", "spawner.secret"),
    ],
)
def test_what_pods_cannot_reach_is_refused(more, connection, control, said, hint):
    asked = dataclasses.replace(scenario(more), connection=connection)
    place = dataclasses.replace(ControlPlaneLocation.of_scenario(asked), connection=control)

    with pytest.raises(ConfigurationError, match=said) as refused:
        require_kubernetes_settings(asked, place)

    assert hint in refused.value.remedy


def test_secrets_of_the_scenario_belong_in_the_secret_of_the_pods():
    text = (SCENARIO % (IMAGE, "service_account: a")).replace("SELECT 1", "\"SELECT '${A_TOKEN}'\"")
    asked = parse_scenario(text, source="x", environ={"A_TOKEN": "s3cret-s3cret"}).scenario

    with pytest.raises(ConfigurationError, match=r"the scenario uses \$\{A_TOKEN\}"):
        require_kubernetes_settings(asked, ControlPlaneLocation.of_scenario(asked))

    with_secret = dataclasses.replace(asked, spawner=dataclasses.replace(asked.spawner, secret="s"))
    require_kubernetes_settings(with_secret, ControlPlaneLocation.of_scenario(asked))


def test_a_run_does_not_start_without_the_client_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)  # not installed

    with pytest.raises(ConfigurationError, match="needs the Python package kubernetes") as refused:
        require_container_settings(scenario(), ControlPlaneLocation(connection="prod"), {})

    assert "loadgen[kubernetes]" in refused.value.remedy


@pytest.mark.parametrize(("configured", "host"), [(False, "https://10.0.0.1:443"), (True, "http://here")])
def test_in_a_pod_the_cluster_around_it_is_used_unless_another_is_configured(tmp_path, monkeypatch, configured, host):
    account = {"token": "of-the-pod", "namespace": "around", "ca.crt": Path(certifi.where()).read_text("utf-8")}
    for name, text in account.items():
        (tmp_path / name).write_text(text, "utf-8")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(tmp_path / "ca.crt"))
    monkeypatch.setattr("orchestrator.spawn.kubernetes.NAMESPACE_FILE", tmp_path / "namespace")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    (tmp_path / "config").write_text(KUBECONFIG, "utf-8")
    environ = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}

    api = KubernetesApi(environ=environ | ({"KUBECONFIG": str(tmp_path / "config")} if configured else {}))

    assert (api.host, api.namespace) == (host, "default" if configured else "around")
    api.close()


def test_a_scenario_with_pods_is_stored_and_read_again():
    asked = scenario(
        "secret: s, labels: {a: b}, resources: {limits: {memory: 1Gi}}, tolerations: [{key: k, effect: NoSchedule}]"
    )

    assert thaw(freeze(asked), {}).spawner == asked.spawner


def test_a_dry_run_prints_the_manifest_with_the_plan_as_its_comment(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(SCENARIO % (IMAGE, "secret: snowflake"), "utf-8")

    text = CliRunner().invoke(run, [str(file), "--dry-run"])
    data = CliRunner().invoke(run, [str(file), "--dry-run", "--format", "json"])

    assert (text.exit_code, data.exit_code) == (0, 0), text.output
    manifest = YAML(typ="safe").load(text.stdout)
    checked("V1Job", manifest)
    assert manifest["metadata"]["name"] == "loadgen-RUN_ID"
    assert "Keeps 20 connections busy" in text.stdout
    assert json.loads(data.stdout)["manifest"] == manifest


def test_the_role_is_printed_for_the_namespace_of_the_scenario(tmp_path):
    file = tmp_path / "orders.yaml"
    file.write_text(SCENARIO % (IMAGE, "secret: snowflake, namespace: load"), "utf-8")

    text = CliRunner().invoke(grants, [str(file), "--kubernetes", "--user", "alice"])
    data = CliRunner().invoke(grants, ["--kubernetes", "--format", "json"])

    assert list(YAML(typ="safe").load_all(text.stdout)) == role_manifests("load", ["alice"])
    assert json.loads(data.stdout)["items"] == role_manifests(None, [])


def test_the_role_is_bound_to_users():
    role, binding = role_manifests("load", ["alice", "system:serviceaccount:ci:runner"])

    checked("V1Role", role)
    checked("V1RoleBinding", binding)
    assert binding["metadata"] == {"name": "loadgen", "namespace": "load"}
    assert [one["name"] for one in binding["subjects"]] == ["alice", "system:serviceaccount:ci:runner"]
    assert len(role_manifests(None, [])) == 1
