#!/bin/sh
# Play an episode with Qwen Code: `agent: {command: [sh, /path/to/qwen_code.sh]}` in the configuration.
# It runs in a new folder, which is its home too, so that it reads no settings of yours. Its settings hold no key: Qwen
# Code puts the variables in their places.
export HOME="$PWD"
export OPENAI_MODEL="$ORL_MODEL"
mkdir .qwen
cat > .qwen/settings.json <<'END'
{
  "general": {"disableAutoUpdate": true},
  "privacy": {"usageStatisticsEnabled": false},
  "telemetry": {"enabled": false},
  "memory": {"enableManagedAutoMemory": false},
  "security": {"auth": {"selectedType": "openai"}},
  "permissions": {"deny": ["tool_search", "agent", "skill", "web_fetch"]},
  "mcpServers": {"orl": {"httpUrl": "$ORL_MCP_URL", "trust": true}}
}
END
exec qwen --prompt="$ORL_PROMPT"
