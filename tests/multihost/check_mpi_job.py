"""check_mpi_job.py FILE: reads an MPIJob as YAML.

Prints a line for each field that Kubernetes or the MPI operator does not know, or that has a value of another type. The schema of
pods is the one from which the Python client of Kubernetes is made: its models name the fields and their types. The operator's own
fields are here (kubeflow.org/v2beta1).
"""
import importlib
import importlib.util
import os
import re
import sys
import types

import yaml


def models_of_kubernetes():
    """The client's models, without its connections, which need more packages."""
    folder = os.path.dirname(os.path.dirname(importlib.util.find_spec("yaml").origin))
    for name in ("kubernetes", "kubernetes.client"):
        sys.modules[name] = types.ModuleType(name)
        sys.modules[name].__path__ = [os.path.join(folder, *name.split("."))]
    return importlib.import_module("kubernetes.client.models")


REPLICAS = {"replicas": "int", "restartPolicy": ("Never", "OnFailure"), "template": "V1PodTemplateSpec"}
RUN_POLICY = {"activeDeadlineSeconds": "int", "backoffLimit": "int", "cleanPodPolicy": ("All", "None", "Running"),
              "managedBy": "str", "schedulingPolicy": "object", "suspend": "bool", "ttlSecondsAfterFinished": "int"}
SPEC = {"launcherCreationPolicy": ("AtStartup", "WaitForWorkersReady"), "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "mpiReplicaSpecs": {"Launcher": REPLICAS, "Worker": REPLICAS}, "runLauncherAsWorker": "bool", "runPolicy": RUN_POLICY,
        "slotsPerWorker": "int", "sshAuthMountPath": "str"}
JOB = {"apiVersion": ("kubeflow.org/v2beta1",), "kind": ("MPIJob",), "metadata": "V1ObjectMeta", "spec": SPEC}
PLAIN = {"str": str, "int": int, "bool": bool, "float": (int, float)}


class Checker:
    def __init__(self):
        self.models = models_of_kubernetes()
        self.faults = []

    def check(self, where, value, kind):
        """`kind`: fields, allowed values, or the name of a type as the client's models have it."""
        if isinstance(kind, dict):
            self.fields(where, value, kind)
        elif isinstance(kind, tuple):
            self.expect(value in kind, where, value, " or ".join(kind))
        elif kind in PLAIN:
            good = isinstance(value, PLAIN[kind]) and (kind == "bool" or not isinstance(value, bool))
            self.expect(good, where, value, kind)
        elif listed := re.fullmatch(r"list\[(.*)\]", kind):
            if self.expect(isinstance(value, list), where, value, "list"):
                for i, item in enumerate(value):
                    self.check(f"{where}[{i}]", item, listed[1])
        elif named := re.fullmatch(r"dict\(str, (.*)\)", kind):
            if self.expect(isinstance(value, dict), where, value, "map"):
                for name, item in value.items():
                    self.check(f"{where}.{name}", item, named[1])
        elif hasattr(self.models, kind):
            model = getattr(self.models, kind)
            types_of = {outside: model.openapi_types[inside] for inside, outside in model.attribute_map.items()}
            self.fields(where, value, types_of)

    def fields(self, where, value, known):
        if not self.expect(isinstance(value, dict), where, value, "map"):
            return
        for name, item in value.items():
            if self.expect(name in known, f"{where}.{name}", name, "a field that exists"):
                self.check(f"{where}.{name}", item, known[name])

    def expect(self, good, where, value, expected):
        if not good:
            self.faults.append(f"{where}: found {value!r}; expected {expected}")
        return good


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        job = yaml.safe_load(file)
    checker = Checker()
    checker.check("job", job, JOB)
    for role in ("Launcher", "Worker"):
        checker.expect(role in job["spec"]["mpiReplicaSpecs"], "job.spec.mpiReplicaSpecs", None, role)
    print("\n".join(checker.faults), end="\n" if checker.faults else "")


main()
