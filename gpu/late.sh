ps -eo pid,etimes,args | grep -E 'benchmarks.throughpu[t]|launch_serve[r]|g0.s[h]' | cut -c1-140
for p in $(pgrep -x timeout); do tr '\0' ' ' </proc/$p/cmdline | grep -q '^timeout -k 10 700' && kill -9 $p; done
(. ~/gpu/env.sh; cd ~/r; CUDA_VISIBLE_DEVICES=1 bash h.sh make 2>&1 | tail -1)
(. ~/r/vllm-env.sh; cd ~/r; CUDA_VISIBLE_DEVICES=1 timeout -k 10 230 python3 vllm-check.py ~/r/m17 --share 0.3 > ~/log/check17.txt 2>&1; tail -50 ~/log/check17.txt)
for i in $(seq 170); do grep -q ratio ~/log/t1024.txt && break; pgrep -f benchmarks.throughpu[t] >/dev/null || break; sleep 1; done; tail -3 ~/log/t1024.txt; date; bash ~/r/h.sh pack
ps -eo pid,etimes,args | grep -E 'benchmarks.throughpu[t]|launch_serve[r]|g0.s[h]' | cut -c1-140
