"""The JobSet for a segment: valid for JobSet's own schema and Kubernetes', and what the configuration says is in it."""

import gzip
import os
import re
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from pydantic import ValidationError

from storage.objects.local_store import LocalStore
from tasks.cluster.kubernetes.jobset import LONGEST_NAME, jobset_name, jobset_of, jobset_to_try, merge
from tasks.cluster.orders import JobOrder
from tasks.configuration.cluster import ClusterConfig
from tasks.configuration.run import DataConfig, RunConfig
from tests.helpers.commands import ROOT
from training.configuration import CheckpointConfig, TrainConfig
from training.model_configuration import EncoderConfig
from training.spec import SegmentSpec
from training.validation_configuration import ValidationConfig

# Of kubernetes-sigs/jobset: config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml, compressed.
DEFINITION = Path(os.environ.get("HOLDFAST_JOBSET_CRD", ROOT / "../shared/data/jobset-crd.yaml.gz"))
KUBERNETES_VERSION = "1.37.0"
ALL = {
    "gpus_per_node": 8,
    "kubernetes": {
        "image": "registry.example/holdfast:1",
        "namespace": "research",
        "service_account": "trainer",
        "secrets": ["bucket"],
        "memory_per_node": "64Gi",
        "shared_memory": "8Gi",
        "scratch_volume": {"hostPath": {"path": "/mnt/nvme"}},
        "labels": {"kueue.x-k8s.io/queue-name": "research"},
        "pod": {
            "metadata": {"annotations": {"example.com/owner": "somebody"}},
            "spec": {
                "nodeSelector": {"pool": "a100"},
                "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
                "volumes": [{"name": "store", "persistentVolumeClaim": {"claimName": "holdfast"}}],
                "containers": [{"name": "ranks", "volumeMounts": [{"name": "store", "mountPath": "/mnt/durable"}]}],
            },
        },
    },
}
LEAST = {"kubernetes": {"image": "holdfast"}}
every_configuration = pytest.mark.parametrize("settings", [LEAST, ALL], ids=["least", "all"])


def order(folder: Path, settings: dict[str, Any], run: str = "small") -> JobOrder:
    scratch = folder / "scratch" / "runs" / run / "00000007"
    spec = SegmentSpec(
        work="train",
        run=run,
        store=str(folder / "store"),
        scratch=str(scratch),
        fence=7,
        dataset_digest="0" * 64,
        dataset_sha256="s" * 64,
        resume=None,
        model=EncoderConfig(),
        train=TrainConfig(ranks=8, threads=2, microbatches=16),
        validation=ValidationConfig(),
        checkpoint=CheckpointConfig(),
    )
    cluster = ClusterConfig.model_validate({"kind": "kubernetes", "nodes": 2, **settings})
    return JobOrder(segment=spec, cluster=cluster, grace_seconds=89.5)


def render(folder: Path, settings: dict[str, Any], run: str = "small") -> dict[str, Any]:
    return jobset_of(order(folder, settings, run), jobset_name(LocalStore(folder / "store"), run, 7))


def job_of(jobset: dict[str, Any]) -> dict[str, Any]:
    (replicated,) = jobset["spec"]["replicatedJobs"]
    spec: dict[str, Any] = replicated["template"]["spec"]
    return spec


def pod_of(jobset: dict[str, Any]) -> dict[str, Any]:
    spec: dict[str, Any] = job_of(jobset)["template"]["spec"]
    return spec


def read_schema() -> dict[str, Any]:
    """JobSet's own, with every key refused that it does not name."""
    if not DEFINITION.is_file():
        pytest.skip(f"JobSet's definition is not at {DEFINITION}; HOLDFAST_JOBSET_CRD names the file, as .yaml.gz")
    definition = yaml.load(gzip.decompress(DEFINITION.read_bytes()), yaml.CSafeLoader)
    (version,) = (each for each in definition["spec"]["versions"] if each["name"] == "v1alpha2")
    schema: dict[str, Any] = closed(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}  # which is checked as any object's
    return schema


def closed(schema: Any) -> Any:
    if isinstance(schema, list):
        return [closed(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        inner["additionalProperties"] = False
    return inner


@every_configuration
def test_a_jobset_is_valid_for_jobsets_own_definition(settings: dict[str, Any], tmp_path: Path) -> None:
    validator = jsonschema.Draft202012Validator(read_schema())
    assert [error.message for error in validator.iter_errors(render(tmp_path, settings))] == []


def test_a_key_that_jobset_does_not_know_would_be_noticed(tmp_path: Path) -> None:
    jobset = render(tmp_path, {"kubernetes": {"image": "holdfast", "pod": {"spec": {"nodeSelektor": {"a": "b"}}}}})
    with pytest.raises(jsonschema.ValidationError, match="nodeSelektor"):
        jsonschema.Draft202012Validator(read_schema()).validate(jobset)


@every_configuration
def test_its_job_and_its_pods_are_valid_for_kubernetes(settings: dict[str, Any], tmp_path: Path) -> None:
    jobset = render(tmp_path, settings)
    template = job_of(jobset)["template"]
    metadata = {"name": "x", "namespace": jobset["metadata"]["namespace"], "labels": jobset["metadata"]["labels"]}
    for kind in (
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": job_of(jobset)},
        {"apiVersion": "v1", "kind": "Pod", "metadata": metadata | template["metadata"], "spec": template["spec"]},
    ):
        # It raises where something is not valid, and says by the schemas of which version it judged.
        judged_by = kubernetes_validate.validate(kind, KUBERNETES_VERSION, strict=True)
        assert KUBERNETES_VERSION.startswith(judged_by)


def test_pods_are_what_pod_security_restricted_permits_and_request_memory(tmp_path: Path) -> None:
    """Each control of the standard: https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted."""
    pod = pod_of(render(tmp_path, LEAST))
    assert pod["securityContext"]["runAsNonRoot"] is True and "runAsUser" not in pod["securityContext"]
    assert pod["securityContext"]["seccompProfile"]["type"] in ("RuntimeDefault", "Localhost")
    assert not any(pod.get(name) for name in ("hostNetwork", "hostPID", "hostIPC", "initContainers"))
    kinds = {kind for volume in pod["volumes"] for kind in volume.keys() - {"name"}}
    assert kinds <= {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    (container,) = pod["containers"]
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    assert container["resources"] == {"requests": {"cpu": "17", "memory": "16Gi"}, "limits": {}}
    numbers = re.findall(r"^USER (.+)$", (ROOT / "Containerfile").read_text(), re.MULTILINE)
    assert numbers and all(int(number) > 0 for number in numbers)  # as a name it could not be told from root


def test_a_pod_may_be_given_more_rights(tmp_path: Path) -> None:
    more = {"securityContext": {"runAsNonRoot": False, "fsGroup": 7}}
    pod = pod_of(render(tmp_path, {"kubernetes": {"image": "holdfast", "pod": {"spec": more}}}))
    assert pod["securityContext"] == {**more["securityContext"], "seccompProfile": {"type": "RuntimeDefault"}}


def test_a_segment_is_one_indexed_job_that_is_never_started_again(tmp_path: Path) -> None:
    jobset = render(tmp_path, LEAST)
    job = job_of(jobset)
    assert (job["completionMode"], job["completions"], job["parallelism"]) == ("Indexed", 2, 2)
    assert (job["backoffLimit"], jobset["spec"]["failurePolicy"]) == (0, {"maxRestarts": 0})
    assert pod_of(jobset)["restartPolicy"] == "Never"


def test_a_pod_has_the_time_to_save_and_the_words_of_its_segment(tmp_path: Path) -> None:
    jobset = render(tmp_path, ALL)
    (container,) = pod_of(jobset)["containers"]
    assert pod_of(jobset)["terminationGracePeriodSeconds"] == 100
    module, *arguments = container["command"][3:]
    assert (module, arguments) == ("tasks.cluster.node", [str(tmp_path / "store"), "small", "7"])
    assert container["resources"] == {
        "requests": {"cpu": "17", "memory": "64Gi", "nvidia.com/gpu": "8"},
        "limits": {"memory": "64Gi", "nvidia.com/gpu": "8"},
    }
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert jobset["metadata"]["labels"] == {
        "app.kubernetes.io/name": "holdfast",
        "holdfast/run": "small",
        "holdfast/fence": "7",
        "kueue.x-k8s.io/queue-name": "research",
    }


def test_what_is_said_of_the_pod_is_merged_by_name_and_decides(tmp_path: Path) -> None:
    pod = pod_of(render(tmp_path, ALL))
    assert pod["nodeSelector"] == {"pool": "a100"}
    assert [volume["name"] for volume in pod["volumes"]] == ["scratch", "shared-memory", "store"]
    (container,) = pod["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {"scratch": str(tmp_path / "scratch"), "shared-memory": "/dev/shm", "store": "/mnt/durable"}
    assert pod["volumes"][0]["hostPath"] == {"path": "/mnt/nvme"}
    assert merge({"list": [1], "text": "a"}, {"list": [2], "more": 1}) == {"list": [2], "text": "a", "more": 1}


def test_scratch_below_the_systems_folder_for_temporary_files_is_made_by_the_pods_own_user(tmp_path: Path) -> None:
    private = order(tmp_path, LEAST).model_copy(update={"private_folder": "/tmp/holdfast-1000"})
    (container,) = pod_of(jobset_of(private, "name"))["containers"]
    assert container["volumeMounts"][0] == {"name": "scratch", "mountPath": "/tmp"}


@pytest.mark.parametrize("run", ["small", "A.Long_name-" + "x" * 88, "9", "--"])
def test_a_name_is_a_dns_label_that_leaves_room_for_its_pods(run: str, tmp_path: Path) -> None:
    store, other = LocalStore(tmp_path / "store"), LocalStore(tmp_path / "other")
    name = jobset_name(store, run, 7)
    kubernetes_validate.validate(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"containers": []}},
        KUBERNETES_VERSION,
        strict=True,
    )
    assert len(name) <= LONGEST_NAME and name.replace("-", "").isalnum() and name == name.lower()
    names = {name, jobset_name(other, run, 7), jobset_name(store, run, 8), jobset_name(store, f"{run}.", 7)}
    assert len(names) == 4


def test_what_is_tried_before_there_is_a_segment_has_the_longest_name_and_the_same_shape(tmp_path: Path) -> None:
    cluster = order(tmp_path, ALL).cluster
    tried = jobset_to_try(cluster, TrainConfig(ranks=8, threads=2, microbatches=16), 89.5)
    assert len(tried["metadata"]["name"]) == LONGEST_NAME
    (container,), (real,) = pod_of(tried)["containers"], pod_of(render(tmp_path, ALL))["containers"]
    assert container["resources"] == real["resources"]


def test_kubernetes_needs_an_image_and_one_number_of_nodes() -> None:
    with pytest.raises(ValidationError, match=r"set cluster\.kubernetes\.image"):
        ClusterConfig(kind="kubernetes")
    with pytest.raises(ValidationError, match=r"min_nodes is 1 and nodes is 2\. Take min_nodes out"):
        ClusterConfig.model_validate({"kind": "kubernetes", "nodes": 2, "min_nodes": 1, **LEAST})


def test_a_run_keeps_what_it_says_of_kubernetes() -> None:
    data = DataConfig(text="t", label="l", kind="binary")
    cluster = ClusterConfig.model_validate({"kind": "kubernetes", "nodes": 2, **ALL})
    config = RunConfig(run="r", data=data, cluster=cluster)
    assert RunConfig.model_validate_json(config.model_dump_json()) == config
