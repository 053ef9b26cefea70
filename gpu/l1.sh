# The 1.7B shape in each layout, one at a time, until DEADLINE (seconds from now): bash l1.sh DEADLINE
end=$(( $(date +%s) + $1 )); cd $HOME/r
go() { [ $(date +%s) -lt $end ] || { echo "no time for $1"; return; }; left=$(( end - $(date +%s) )); T=$(( left < ${LIM:-170} ? left + 15 : ${LIM:-170} )) bash h.sh big "$@"; }
bash h.sh make
go ddp 0,1 3 --num-gpus 2; python3 times.py ddp; tail -3 $HOME/log/ddp.txt
go one 0 3; python3 times.py one
go apart 0,1 3 --num-gpus 2 --rollout-gpus 1; python3 times.py apart; tail -3 $HOME/log/apart.txt
go async 0,1 4 --num-gpus 2 --rollout-gpus 1 --async; python3 times.py async
go fsdp 0,1 2 --num-gpus 2 --sharding fsdp; python3 times.py fsdp; tail -3 $HOME/log/fsdp.txt
go ddpasync 0,1 4 --num-gpus 2 --async
python3 times.py
