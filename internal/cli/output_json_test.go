package cli

import (
	"encoding/json"
	"testing"

	. "github.com/onsi/gomega"
)

func TestJSONHoldsNothingThatATerminalActsOn(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"control characters":        "a\x1b[2J\u009b2J\u007f\u0085",
		"the direction of writing":  "a\u202eb\u2066c\ufeff",
		"beyond the first 65,536":   "a\U000e0001b",
		"letters, emoji and breaks": "Straße 👩‍💻\n\t\"",
	} {
		t.Run(name, func(t *testing.T) {
			g := NewWithT(t)
			document, err := json.Marshal(map[string]string{"text": text})
			g.Expect(err).NotTo(HaveOccurred())
			escaped := escapedJSON(document)
			for _, r := range string(escaped) {
				g.Expect(dangerous(r)).To(BeFalse(), "%q", r)
			}
			var read map[string]string
			g.Expect(json.Unmarshal(escaped, &read)).To(Succeed())
			g.Expect(read).To(HaveKeyWithValue("text", text))
		})
	}
}
