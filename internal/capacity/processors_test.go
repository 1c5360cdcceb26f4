package capacity

import (
	"testing"

	"github.com/onsi/gomega"
)

func TestANodeIsBusyWhenItsLoadIsHalfOfItsProcessors(t *testing.T) {
	for text, busy := range map[string]bool{
		"0.99 3.00 3.00 2/300 12": false,
		"1.00 0.10 0.10 1/300 12": true,
		"17.3 0.10 0.10 1/300 12": true,
		"":                        true,
		"much":                    true,
	} {
		gomega.NewWithT(t).Expect(halfLoaded(text, 2)).To(gomega.Equal(busy), text)
	}
}
