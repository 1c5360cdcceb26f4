package conversation_test

import (
	"encoding/hex"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/clew-dev/clew/internal/conversation"
)

func TestCut(t *testing.T) {
	tests := map[string]struct {
		text   string
		pieces int
	}{
		"empty":            {"", 0},
		"fits":             {strings.Repeat("x", conversation.MaxInline), 0},
		"one byte more":    {strings.Repeat("x", conversation.MaxInline+1), 1},
		"one whole piece":  {strings.Repeat("x", conversation.MaxPiece), 1},
		"two":              {strings.Repeat("x", conversation.MaxPiece+1), 2},
		"runes of 4 bytes": {"x" + strings.Repeat("😀", conversation.MaxPiece/2), 3},
		"a broken rune":    {strings.Repeat("\xff", conversation.MaxPiece+10), 2},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			beginning, names, pieces := conversation.Cut(tt.text)
			if len(pieces) != tt.pieces {
				t.Fatalf("there are %d pieces, want %d", len(pieces), tt.pieces)
			}
			if !strings.HasPrefix(tt.text, beginning) {
				t.Fatalf("the %d bytes that stay are not the beginning of the text", len(beginning))
			}
			if tt.pieces == 0 {
				if names != nil || beginning != tt.text {
					t.Errorf("a short text was cut: %+v", names)
				}
				return
			}
			if strings.Join(pieces, "") != tt.text {
				t.Error("the pieces are not the whole text")
			}
			if len(beginning) > conversation.PreviewBytes {
				t.Errorf("the beginning has %d bytes, want at most %d", len(beginning), conversation.PreviewBytes)
			}
			want := &conversation.Pieces{Bytes: int64(len(tt.text))}
			for i, piece := range pieces {
				want.Hashes = append(want.Hashes, conversation.PieceHash(piece))
				if len(piece) > conversation.MaxPiece {
					t.Errorf("piece %d has %d bytes, want at most %d", i, len(piece), conversation.MaxPiece)
				}
				if utf8.ValidString(tt.text) && !utf8.ValidString(piece) {
					t.Errorf("piece %d splits a rune", i)
				}
			}
			if d := cmp.Diff(want, names); d != "" {
				t.Errorf("names of the pieces (-want +got):\n%s", d)
			}
		})
	}
}

// Addresses are stored in databases, so they must never change.
func TestAddressesAreStable(t *testing.T) {
	m := conversation.Message{
		Role: conversation.RoleAssistant, Text: "a", Raw: "b",
		ToolCall:   &conversation.ToolCall{ID: "1", Name: "Bash", Input: "{}"},
		ToolResult: &conversation.ToolResult{CallID: "1", Output: "c", IsError: true},
	}
	whole := m.Hash("team")
	m.TextPieces = &conversation.Pieces{Hashes: [][]byte{conversation.PieceHash("a")}, Bytes: 1}
	cut := m.Hash("team")
	tests := map[string]struct{ got, want conversation.Digest }{
		"whole": {conversation.Digest(whole), digest(t, "03399350bd557dc0a3f1d1c7f64826785d8850abf0d5e259774d511cb8ac7180")},
		"cut":   {conversation.Digest(cut), digest(t, "62708d67e3e9ec8ac45abda9ef6f9b58ab1f1239d7f879c5d0eabc7d292ac58d")},
		"both":  {conversation.Digest{}.Add(whole).Add(cut), digest(t, "adc775f17313d8b54cea3f4bd9f8b9ae3ce80e54dd23f25962dc52fdba31ab71")},
	}
	for name, tt := range tests {
		if tt.got != tt.want {
			t.Errorf("%s: %s, want %s", name, tt.got, tt.want)
		}
	}
}

func digest(t *testing.T, text string) conversation.Digest {
	t.Helper()
	decoded, err := hex.DecodeString(text)
	if err != nil {
		t.Fatal(err)
	}
	return conversation.Digest(decoded)
}

// Each text of a message that was cut is hashed by its pieces, and by nothing else.
func TestACutTextIsHashedByItsPieces(t *testing.T) {
	build := func() conversation.Message {
		return conversation.Message{ToolCall: &conversation.ToolCall{}, ToolResult: &conversation.ToolResult{}}
	}
	seen := map[conversation.Hash]int{}
	plain := build()
	seen[plain.Hash("n")] = -1
	for i := range 4 {
		for _, names := range []*conversation.Pieces{
			{}, {Bytes: 1}, {Hashes: [][]byte{conversation.PieceHash("a")}, Bytes: 1},
			{Hashes: [][]byte{conversation.PieceHash("a"), conversation.PieceHash("a")}, Bytes: 1},
		} {
			m := build()
			*m.Texts()[i].Pieces = names
			hash := m.Hash("n")
			if other, ok := seen[hash]; ok {
				t.Errorf("text %d with the pieces %+v gives the same address as other pieces of text %d", i, names, other)
			}
			seen[hash] = i
			if *m.Texts()[i].Text = "beginning"; m.Hash("n") != hash {
				t.Errorf("the beginning of text %d is part of the hash", i)
			}
		}
	}
}

func TestCloneSharesNoTexts(t *testing.T) {
	m := calls("1")
	m.ToolResult = &conversation.ToolResult{Output: "before"}
	c := m.Clone()
	for _, text := range c.Texts() {
		*text.Text = "after"
	}
	for i, text := range m.Texts() {
		if *text.Text == "after" {
			t.Errorf("changing text %d of the clone changed the original", i)
		}
	}
}
