"""What of a machine its programs depend on: the architecture and the instructions that it has."""

from __future__ import annotations

import functools
import platform
from pathlib import Path

_ELSEWHERE = """
    acpi aperfmperf arat arch_capabilities arch_perfmon bts constant_tsc cpuid cpuid_fault de ds
    ds_cpl dtes64 dtherm dts epb ept ept_ad erms est flexpriority flush_l1d hfi ht hwp
    hwp_act_window hwp_epp hwp_notify hwp_pkg_req hypervisor ibpb ibrs ibrs_enhanced ida
    intel_pt invpcid_single mca mce md_clear monitor mtrr nonstop_tsc nopl npt nrip_save nx pae
    pat pbe pcid pdcm pebs pge pln pni_tsc pse pse36 pti pts rep_good retpoline sep smap smep
    smx split_lock_detect ss ssbd stibp svm tm tm2 tpr_shadow tsc tsc_adjust tsc_deadline_timer
    tsc_known_freq tsc_reliable tsc_scale umip vif virt_ssbd vme vmmcall vmx vnmi vpid x2apic
    xtopology xtpr
"""
"""Flags of Linux that name nothing a compiler uses: of kernels, virtual machines, and flaws."""


@functools.lru_cache(maxsize=1)
def instruction_set() -> str:
    """The instructions that this machine has, as Linux names them, in order."""
    try:
        for line in Path("/proc/cpuinfo").read_text(errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                found = set(line.partition(":")[2].split())
                return " ".join(sorted(found.difference(_ELSEWHERE.split())))
    except OSError:
        pass
    return platform.machine()


def machine_vector_bytes() -> int:
    """The width of this machine's vectors in bytes: 64, 32 or 16."""
    features = set(instruction_set().split())
    if {"avx512f", "avx512bw", "avx512vl", "avx512dq"} <= features:
        return 64
    return 32 if "avx2" in features else 16


def machine_facts() -> dict[str, str]:
    """What compiled programs depend on, by name: those of one machine run where all is the same."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "instructions": instruction_set(),
    }
