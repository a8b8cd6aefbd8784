"""Errors of unit tests as they were printed where something was not there, and errors that are the change's own."""

import pytest

from verl_e2e.core.judge.junit import missing_from_environment, missing_package


@pytest.mark.parametrize(
    ("error", "missing"),
    [
        (
            "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and "
            "installed a driver from http://www.nvidia.com/Download/index.aspx",
            "the GPUs that it asks for",
        ),
        ("RuntimeError: TransformerEngine needs CUDA.", "the GPUs that it asks for"),
        ("AssertionError: Torch not compiled with CUDA enabled", "the GPUs that it asks for"),
        ("AssertionError: assert 'Torch not compiled with CUDA enabled' in ''", ""),
        ("RuntimeError: No CUDA GPUs are available", "the GPUs that it asks for"),
        (
            "RuntimeError: ColumnParallelLinear was called with gradient_accumulation_fusion set to True but the "
            "custom CUDA extension fused_weight_gradient_mlp_cuda module is not found. To use it, install APEX",
            "apex's fused kernels",
        ),
        ("ModuleNotFoundError: No module named 'nemo_run'", "package nemo_run"),
        ("ModuleNotFoundError: No module named 'megatron.energon'", "package megatron.energon"),
        ("ModuleNotFoundError: No module named 'megatron'", ""),
        (
            "RuntimeError: The multistorageclient package is not available. Please install it",
            "package multistorageclient",
        ),
        (
            "ImportError: \nFeatureExtractor requires the librosa library but it was not found in your environment.",
            "package librosa",
        ),
        ("ImportError: \nAnExtractor requires the librosa library. But that was not found.", "package librosa"),
        ("ImportError: No module named 'apex.normalization'", "package apex.normalization"),
        ("ModuleNotFoundError: No module named 'examples.conversion'", ""),
        ("ModuleNotFoundError: No module named 'megatron.bridge.gone'", ""),
        ("ImportError: cannot import name 'LoRA' from 'megatron.bridge.peft'", ""),
        ("RuntimeError: wrapped\nModuleNotFoundError: No module named 'nemo_run'", ""),
        ("OSError: [Errno 98] Address already in use", "a port that no one else on the host uses"),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
            "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
            "a port that no one else on the host uses",
        ),
        ("AssertionError: assert 'Address already in use' in ''", ""),
        ("OSError: [Errno 28] No space left on device: '/x'", "room on the disk"),
        (
            "OSError: We couldn't connect to 'https://huggingface.co' to load the files",
            "a way to the network",
        ),
        ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find the requested files", "a way to the network"),
        ("AssertionError: Regex pattern did not match.\n Input: 'Found no NVIDIA driver on your system.'", ""),
        ("assert 'No CUDA GPUs are available' == ''", ""),
        ("Failed: DID NOT RAISE <class 'ModuleNotFoundError'> No module named 'nemo_run'", ""),
        ("ValueError: 3 heads do not divide 4 ranks", ""),
        ("RuntimeError: CUDA error: device-side assert triggered", ""),
        ("", ""),
    ],
)
def test_what_an_error_says_of_its_environment(error: str, missing: str) -> None:
    assert missing_from_environment(error) == missing


@pytest.mark.parametrize(
    ("text", "package"),
    [
        ("E   ModuleNotFoundError: No module named 'a'\nE   ModuleNotFoundError: No module named 'b'", "b"),
        ("No module named 'tests.unit'", ""),
        ("nothing", ""),
    ],
)
def test_the_last_missing_package_counts(text: str, package: str) -> None:
    assert missing_package(text) == package
