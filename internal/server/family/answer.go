package family

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/clew-dev/clew/internal/clip"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/toolcall"
)

// cutText ends a text that is longer than an answer may be.
const cutText = "\n[The answer is longer, and was cut here.]"

// refusal is why a call is not answered, in words for a model.
type refusal struct{ text string }

// Error implements error.
func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// reply is an answer whose data is not encoded yet.
type reply struct {
	text string
	data any
}

// answer decodes the arguments of a call, and encodes what it is answered with.
func answer[In any](ctx context.Context, supervisor history.Task, arguments []byte, read func(context.Context, history.Task, In) (reply, error)) (toolcall.Answer, error) {
	var in In
	var r reply
	err := json.Unmarshal(arguments, &in)
	if err != nil {
		err = refuse("The call cannot be read: %s.", clip.Marked(err.Error(), 1<<10))
	} else {
		r, err = read(ctx, supervisor, in)
	}
	var refused *refusal
	if errors.As(err, &refused) {
		return toolcall.Answer{Refused: true, Text: bounded(refused.text)}, nil
	}
	if err != nil {
		return toolcall.Answer{}, err
	}
	return toolcall.Answer{Text: bounded(r.text), Data: encoded(r.data)}, nil
}

// bounded returns a text that is no longer than an answer may be.
func bounded(text string) string {
	text = conversation.CleanText(text)
	if len(text) <= toolcall.MaxText {
		return text
	}
	return clip.Bytes(text, toolcall.MaxText-len(cutText)) + cutText
}

// encoded returns data as JSON; nil if that is longer than the data of an answer may be.
func encoded(data any) json.RawMessage {
	text, err := json.Marshal(data)
	if err != nil || len(text) > toolcall.MaxData {
		return nil
	}
	return text
}

// within returns a limit that a caller names, or another one if it names none, up to the most.
func within(limit, otherwise, most int) int {
	if limit <= 0 {
		return otherwise
	}
	return min(limit, most)
}

// counted formats a number of things.
func counted(n int64, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
