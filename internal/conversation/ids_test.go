package conversation_test

import (
	"strings"
	"testing"

	"github.com/onsi/gomega"

	"github.com/clew-dev/clew/internal/conversation"
)

func TestALongIDIsShortenedAndStaysUnique(t *testing.T) {
	g := gomega.NewWithT(t)
	long := strings.Repeat("é", 1<<19)
	short := conversation.ShortID(long)
	g.Expect(len(short)).To(gomega.BeNumerically("<=", conversation.MaxID))
	g.Expect(short).To(gomega.Equal(strings.ToValidUTF8(short, "?")), "a rune is split")
	g.Expect(short).To(gomega.HavePrefix("éé"))
	g.Expect(conversation.ShortID(long)).To(gomega.Equal(short))
	g.Expect(conversation.ShortID(short)).To(gomega.Equal(short), "the daemon and the store may both shorten it, so shortening must be idempotent")
	g.Expect(conversation.ShortID(long + "1")).NotTo(gomega.Equal(short))
	whole := strings.Repeat("x", conversation.MaxID)
	g.Expect(conversation.ShortID(whole)).To(gomega.Equal(whole))
}
