package agent

// toolServer is the name of the server of Clew's tools in the agents' settings. Agents make it
// part of the tools' names, such as mcp__clew__checkpoint.
const toolServer = "clew"

// toolSeconds is how long the agents wait for an answer of a tool: longer than the daemon takes
// for one. Claude Code waits for hours by itself, and its setting would hold for all servers.
const toolSeconds = 90

// mcpServers returns the setting mcpServers, in the form that several agents share, with what
// only some of them know. It is empty without tools.
func mcpServers(tools []string, more map[string]any) map[string]any {
	if len(tools) == 0 {
		return map[string]any{}
	}
	server := map[string]any{"command": tools[0], "args": append([]string{}, tools[1:]...)}
	for name, value := range more {
		server[name] = value
	}
	return map[string]any{toolServer: server}
}
