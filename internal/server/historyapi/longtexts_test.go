package historyapi_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"slices"
	"strings"

	. "github.com/onsi/ginkgo/v2"
	. "github.com/onsi/gomega"

	historyv1alpha1 "github.com/clew-dev/clew/api/history/v1alpha1"
	"github.com/clew-dev/clew/internal/conversation"
	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/cases"
)

// longTexts is a store of one page of cut messages.
type longTexts struct {
	page  history.EntryPage
	texts map[string]string // by the hash of the only piece
}

func (s longTexts) TaskConversation(context.Context, history.ConversationQuery) (history.EntryPage, error) {
	page := s.page
	page.Entries = slices.Clone(page.Entries)
	return page, nil
}

func (longTexts) Timeline(context.Context, history.TimelineQuery) (history.EventPage, error) {
	return history.EventPage{}, nil
}

func (longTexts) Namespace(_ context.Context, name string) (history.Namespace, error) {
	return history.Namespace{Name: name, Key: name}, nil
}

func (longTexts) Entries(context.Context, history.EntriesQuery) ([]history.Event, error) {
	return nil, nil
}

func (s longTexts) Text(_ context.Context, namespace string, p *conversation.Pieces) (string, error) {
	return s.texts[namespace+"/"+string(p.Hashes[0])], nil
}

var _ = Describe("Long texts", func() {
	It("long texts are returned in full on request", func() {
		pieces := func(hash string, bytes int64) *conversation.Pieces {
			return &conversation.Pieces{Hashes: [][]byte{[]byte(hash)}, Bytes: bytes}
		}
		messages := func() []history.Entry {
			return []history.Entry{
				{Position: 1, Message: conversation.Message{Role: "user", Text: "a beg", TextPieces: pieces("text", 11)}},
				{Position: 2, Message: conversation.Message{Role: "assistant", ToolCall: &conversation.ToolCall{Name: "Write", Input: `{"a`, InputPieces: pieces("input", 7)}}},
				{Position: 3, Message: conversation.Message{Role: "tool", ToolResult: &conversation.ToolResult{Output: "hu", OutputPieces: pieces("huge", 9<<20)}}},
				{Position: 4, Message: conversation.Message{Role: "output", Raw: "li", RawPieces: pieces("line", 4)}},
			}
		}
		store := longTexts{texts: map[string]string{"team/text": "a beginning", "team/input": `{"a":1}`, "team/line": "line"}}
		ask := func(query string) []historyv1alpha1.ConversationEntry {
			store.page = history.EntryPage{Task: history.Task{Namespace: "team"}, Entries: messages()}
			return read[historyv1alpha1.ConversationList](serveConversations(store), conversationPath+query).Items
		}

		By("not requesting them")
		cut := ask("")
		Expect(cut[0]).To(And(HaveField("Text", "a beg"), HaveField("TextBytes", int64(11))))
		Expect(cut[1]).To(HaveField("ToolCall.InputBytes", int64(7)))
		Expect(cut[2]).To(HaveField("ToolResult.OutputBytes", int64(9<<20)))
		Expect(cut[3]).To(HaveField("RawBytes", int64(4)))

		By("requesting them")
		full := ask("?full=true")
		Expect(full[0]).To(And(HaveField("Text", "a beginning"), HaveField("TextBytes", int64(0))))
		Expect(full[1]).To(And(HaveField("ToolCall.Input", `{"a":1}`), HaveField("ToolCall.InputBytes", int64(0))))
		Expect(full[3]).To(HaveField("Raw", "line"))
		Expect(full[2]).To(And(HaveField("ToolResult.Output", "hu"), HaveField("ToolResult.OutputBytes", int64(9<<20))), "beyond the limit")
	})

	// Each character of these outputs takes six bytes in JSON, or would if it were
	// escaped for HTML.
	Describe("full texts are written with little memory", func() {
		for name, text := range cases.Sorted(map[string]string{"HTML": "<", "control characters": "\x1b"}) {
			It(name, func() {
				f := printed{outputs: []output{{text, 8 << 20}, {text, 8 << 20}, {text, 8 << 20}, {text, 8 << 20}}}.serve()
				before := inUse()
				w := &weighing{ResponseRecorder: httptest.NewRecorder()}
				r := httptest.NewRequestWithContext(f.ctx, http.MethodGet, conversationPath+"?full=true", nil)
				r.Header.Set("X-User", "ann")
				f.handler.ServeHTTP(w, r)
				Expect(w.written).To(BeNumerically(">=", 24<<20), "three whole texts")
				Expect(w.most).To(BeNumerically("<", before+16<<20), "one text, and the part of it that is being written")
			})
		}
	})

	It("a long page of full texts ends early", func() {
		f := printed{outputs: []output{{"x", 8 << 20}, {"x", 8 << 20}, {"\x1b", 4 << 20}, {"x", 8 << 20}, {"x", 8 << 20}}}.serve()
		var pages []int
		for _, list := range readPages[historyv1alpha1.ConversationList](f, conversationPath+"?full=true") {
			for _, e := range list.Items {
				Expect(e.ToolResult.OutputBytes).To(BeZero(), "the output of message %d is complete", e.Position)
			}
			pages = append(pages, len(list.Items))
			if list.Continue != "" {
				Expect(list.RemainingItemCount).To(HaveValue(BeEquivalentTo(5 - list.Items[len(list.Items)-1].Position)))
			}
		}
		Expect(pages).To(Equal([]int{3, 2}), "a page ends when its JSON is longer than 32 MiB")
	})

	It("a text that cannot be read does not hold back those before it", func() {
		f := printed{outputs: []output{{"one ", 50_000}, {"two ", 50_000}, {"", 100_000}}}.serve()
		list := read[historyv1alpha1.ConversationList](f, conversationPath+"?full=true")
		Expect(list.Items).To(HaveLen(2))
		rest := "continue=" + url.QueryEscape(list.Continue)
		Expect(f.get("ann", conversationPath+"?full=true&"+rest)).To(beRefused(http.StatusInternalServerError, saying("log says why")))
		Expect(f.get("ann", conversationPath+"?"+rest)).To(HaveHTTPStatus(http.StatusOK), "its beginning can be read")
	})

	// Long texts are encoded in parts, which must not be noticeable.
	It("long texts are returned unchanged", func() {
		odd := "\"</script>\\u0000 \u2028\t\x1b €𝄞é"
		var messages []history.Entry
		texts := map[string]string{}
		for shift := range len(odd) + 1 {
			of := func(place string) *conversation.Pieces {
				text := strings.Repeat("x", shift) + place + strings.Repeat(odd, 2500)
				texts["team/"+fmt.Sprint(place, shift)] = text
				return &conversation.Pieces{Hashes: [][]byte{[]byte(fmt.Sprint(place, shift))}, Bytes: int64(len(text))}
			}
			messages = append(messages, history.Entry{Position: int64(shift + 1), Message: conversation.Message{
				Role: "tool", TextPieces: of("text"), RawPieces: of("raw"),
				ToolCall:   &conversation.ToolCall{Name: odd, InputPieces: of("input")},
				ToolResult: &conversation.ToolResult{CallID: odd, OutputPieces: of("output")},
			}})
		}
		store := longTexts{texts: texts, page: history.EntryPage{Task: history.Task{Namespace: "team"}, Entries: messages}}
		list := read[historyv1alpha1.ConversationList](serveConversations(store), conversationPath+"?full=true")
		Expect(list.Kind).To(Equal("ConversationList"))
		Expect(list.Items).To(HaveLen(len(messages)))
		for i, e := range list.Items {
			for place, got := range map[string]string{"text": e.Text, "raw": e.Raw, "input": e.ToolCall.Input, "output": e.ToolResult.Output} {
				Expect(got == texts["team/"+fmt.Sprint(place, i)]).To(BeTrue(), "the %s of message %d is another one", place, i+1)
			}
			Expect(e.ToolCall.Name).To(Equal(odd))
			Expect(e.ToolResult.CallID).To(Equal(odd))
		}
	})
})

// printed is a store with a conversation of tool outputs, as an agent prints them: one
// text over and over. Outputs without a text cannot be read.
type printed struct {
	longTexts
	outputs []output
}

type output struct {
	text  string
	times int
}

func (p printed) TaskConversation(_ context.Context, query history.ConversationQuery) (history.EntryPage, error) {
	page := history.EntryPage{Task: history.Task{Namespace: "team", UID: "u"}, Branch: "main"}
	for i := int(query.After); i < len(p.outputs); i++ {
		o := p.outputs[i]
		page.Entries = append(page.Entries, history.Entry{Position: int64(i + 1), Message: conversation.Message{
			Role: "tool", ToolResult: &conversation.ToolResult{Output: "a beginning", OutputPieces: &conversation.Pieces{
				Hashes: [][]byte{[]byte(o.text)}, Bytes: int64(max(len(o.text), 1) * o.times),
			}},
		}})
	}
	return page, nil
}

func (p printed) Text(_ context.Context, _ string, pieces *conversation.Pieces) (string, error) {
	text := string(pieces.Hashes[0])
	if text == "" {
		return "", errors.New("a piece is missing")
	}
	return strings.Repeat(text, int(pieces.Bytes)/len(text)), nil
}

func (p printed) serve() *fixture { return serveConversations(p) }

// weighing is a caller that measures the memory in use while a response is written.
type weighing struct {
	*httptest.ResponseRecorder
	written, most uint64
}

func (w *weighing) Write(p []byte) (int, error) {
	const often = 4 << 20
	before := w.written
	if w.written += uint64(len(p)); before == 0 || before/often < w.written/often {
		w.most = max(w.most, inUse())
	}
	return len(p), nil
}

func inUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
