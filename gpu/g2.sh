# A step before (72b74e8c, wheels in ~/k/c7/old, configs in ~/k/c7/oldconfigs) and after, alternating on one GPU: bash g2.sh GPU
R=$HOME/r; cd $R; [ -d $HOME/orlold ] || { cp -r $HOME/orl $HOME/orlold; rm -rf $HOME/orlold/orl_* ; python3 -m pip install -q --no-index --no-deps --no-compile --target $HOME/orlold $HOME/k/c7/old/*.whl 2>&1 | grep -v WARN; python3 -m compileall -q -j 16 $HOME/orlold > /dev/null 2>&1; cp -rL $HOME/k/c7/oldconfigs $R/oldconfigs; }
for round in ${ROUNDS:-1 2}; do
  ORL=$HOME/orlold CONF=oldconfigs T=260 bash h.sh real old$round 11 $1 12; python3 times.py old$round
  T=260 bash h.sh real new$round 11 $1 12 --set rollout.workers=4; python3 times.py new$round
  [ -n "${ASYNC:-}" ] && { T=260 bash h.sh real ahead$round 11 $1 12 --async --set rollout.workers=4; python3 times.py ahead$round; }
done
