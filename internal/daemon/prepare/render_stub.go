package prepare

import (
	"fmt"
	"strings"

	"github.com/clew-dev/clew/internal/daemonapi"
	daemonv1 "github.com/clew-dev/clew/internal/daemonapi/v1"
)

func renderConversation(entries []*daemonv1.ConversationEntry, _ daemonapi.ContextLimits) string {
	return fmt.Sprintf("so far: %s", strings.TrimSpace(fmt.Sprint(len(entries))))
}

func renderMissing(entries []*daemonv1.ConversationEntry, _ daemonapi.ContextLimits) string {
	return fmt.Sprintf("missing: %d", len(entries))
}
