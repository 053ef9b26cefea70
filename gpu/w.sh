# Wait until WORD is in the stages, or SECONDS are over, then show them and pack: bash w.sh SECONDS WORD
for i in $(seq $1); do grep -q "$2" $HOME/log/stages.txt 2>/dev/null && break; sleep 1; done; cat $HOME/log/stages.txt; cd $HOME/r; for n in $(ls runs 2>/dev/null); do wc -l runs/$n/metrics.jsonl 2>/dev/null; done; tail -n 2 $HOME/log/t*.txt; bash h.sh pack
