// An agent of Mastra. Its packages are in the folder FRAMEWORK: a module of JavaScript finds no others.

import { createRequire } from "node:module";

const { Agent } = createRequire(`${process.env.FRAMEWORK}/`)("@mastra/core/agent");
const { MCPClient } = createRequire(`${process.env.FRAMEWORK}/`)("@mastra/mcp");
const { OPENAI_BASE_URL, OPENAI_API_KEY, ORL_MCP_URL, ORL_MODEL, ORL_PROMPT } = process.env;

const game = new MCPClient({ servers: { game: { url: new URL(ORL_MCP_URL) } } });
const model = { id: `orl/${ORL_MODEL}`, url: OPENAI_BASE_URL, apiKey: OPENAI_API_KEY };
const player = new Agent({ id: "player", name: "player", instructions: "You play.", model, tools: await game.listTools() });
await player.generate(ORL_PROMPT, { maxSteps: 100 });
await game.disconnect();
