# Sourced on the GPU host, by vllm.sh and by runs of orl that start vLLM: one PYTHONPATH for both, without the SGLang kit.
export PYTHONPATH=${VPATH:-$HOME/orl:$HOME/vsite:$HOME/src}
export no_proxy='*' NO_PROXY='*' HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 PYTHONUNBUFFERED=1
export VLLM_CACHE_ROOT=${VLLM_CACHE_ROOT:-$HOME/.cache/vllm} VLLM_CONFIG_ROOT=${VLLM_CONFIG_ROOT:-$HOME/.config/vllm}
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$HOME/.cache/triton} FLASHINFER_WORKSPACE_BASE=$HOME/.cache
# NVLink multicast stays off on these hosts.
export NCCL_NVLS_ENABLE=0 TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NVSHMEM_DISABLE_NVLS=1 VLLM_ALLREDUCE_USE_SYMM_MEM=0
export VLLM_USE_FLASHINFER_SAMPLER=0 CUDA_MODULE_LOADING=LAZY
export PYTHONPYCACHEPREFIX=  # empty: read the byte code that `prep` and the image made, also in the child that orl starts
unset PYTHONDONTWRITEBYTECODE http_proxy https_proxy all_proxy HTTP_PROXY HTTPS_PROXY ALL_PROXY
[ -d /usr/local/nvidia/lib64 ] && export LD_LIBRARY_PATH=/usr/local/nvidia/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
mkdir -p "$VLLM_CACHE_ROOT" "$VLLM_CONFIG_ROOT" "$TRITON_CACHE_DIR"
