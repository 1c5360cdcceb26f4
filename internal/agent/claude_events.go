package agent

import "encoding/json"

// claudeEvent is one line of the output.
type claudeEvent struct {
	Type      string `json:"type"`
	Subtype   string `json:"subtype"`
	SessionID string `json:"session_id"`
	Model     string `json:"model"`
	Version   string `json:"claude_code_version"`
	Qwen      string `json:"qwen_code_version"`
	Parent    string `json:"parent_tool_use_id"`
	// Error is the kind of an API error. The field with its HTTP status has one name
	// in a retry, and another in a message or a result.
	Error      claudeError    `json:"error"`
	Status     int            `json:"error_status"`
	APIStatus  int            `json:"api_error_status"`
	APIError   string         `json:"api_error_type"`
	RetryTry   count          `json:"attempt"`
	RetryOf    count          `json:"max_retries"`
	RetryDelay count          `json:"retry_delay_ms"`
	Message    *claudeMessage `json:"message"`

	IsError   bool                   `json:"is_error"`
	Result    string                 `json:"result"`
	Errors    []string               `json:"errors"`
	TotalCost *dollars               `json:"total_cost_usd"`
	Usage     *claudeUsage           `json:"usage"`
	SinceLast map[string]claudeModel `json:"model_usage_since_last_result"`
}

// claudeError is the kind of an error or, in Qwen Code's events, an object with its
// message.
type claudeError struct{ kind, message string }

// UnmarshalJSON implements json.Unmarshaler.
func (e *claudeError) UnmarshalJSON(data []byte) error {
	if json.Unmarshal(data, &e.kind) == nil {
		return nil
	}
	var object struct {
		Message string `json:"message"`
	}
	err := json.Unmarshal(data, &object)
	e.message = object.Message
	return err
}

// claudeMessage is the message of an event.
type claudeMessage struct {
	ID      string          `json:"id"`
	Model   string          `json:"model"`
	Content json.RawMessage `json:"content"`
	Usage   *claudeUsage    `json:"usage"`
}

// claudeUsage is the usage of a message or a result.
type claudeUsage struct {
	Input       count `json:"input_tokens"`
	CacheCreate count `json:"cache_creation_input_tokens"`
	CacheRead   count `json:"cache_read_input_tokens"`
	Output      count `json:"output_tokens"`
}

// claudeModel is the usage of one model in a result.
type claudeModel struct {
	Input       count   `json:"inputTokens"`
	CacheCreate count   `json:"cacheCreationInputTokens"`
	CacheRead   count   `json:"cacheReadInputTokens"`
	Output      count   `json:"outputTokens"`
	Cost        dollars `json:"costUSD"`
}

// claudeBlock is one block of a message's content.
type claudeBlock struct {
	Type      string          `json:"type"`
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Text      string          `json:"text"`
	Thinking  string          `json:"thinking"`
	Input     json.RawMessage `json:"input"`
	ToolUseID string          `json:"tool_use_id"`
	Content   json.RawMessage `json:"content"`
	IsError   bool            `json:"is_error"`

	raw json.RawMessage
}

// progress reports whether an event only describes the progress of something that is
// printed completely later: a message, a slow tool, a command in the background.
func (e claudeEvent) progress() bool {
	if e.Type != "system" {
		return e.Type == "stream_event" || e.Type == "tool_progress"
	}
	switch e.Subtype {
	case "thinking_tokens", "status", "task_started", "task_progress", "task_updated", "task_notification":
		return true
	}
	return false
}

// claudeBlocks returns the blocks of a message's content; a string is one text block. A
// block that cannot be decoded has no type.
func claudeBlocks(content json.RawMessage) ([]claudeBlock, bool) {
	var text string
	if json.Unmarshal(content, &text) == nil {
		return []claudeBlock{{Type: "text", Text: text}}, true
	}
	var parts []json.RawMessage
	if json.Unmarshal(content, &parts) != nil || len(parts) == 0 {
		return nil, false
	}
	blocks := make([]claudeBlock, len(parts))
	for i, part := range parts {
		if json.Unmarshal(part, &blocks[i]) != nil {
			blocks[i] = claudeBlock{}
		}
		blocks[i].raw = part
	}
	return blocks, true
}
