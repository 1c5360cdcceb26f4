package shim

import (
	"slices"
	"testing"
)

func TestTheProgramOfTheToolsIsFound(t *testing.T) {
	const program = "/run/clew/bin/clew"
	for _, tt := range []struct{ env, want []string }{
		{[]string{"PATH=/usr/bin:/bin"}, []string{"PATH=/usr/bin:/bin:/run/clew/bin", "CLEW_BIN=" + program}},
		{[]string{"HOME=/h"}, []string{"HOME=/h", "CLEW_BIN=" + program}},
		{[]string{"CLEW_BIN=/mine", "PATH=/a"}, []string{"CLEW_BIN=/mine", "PATH=/a:/run/clew/bin"}},
	} {
		if got := withProgram(tt.env, program); !slices.Equal(got, tt.want) {
			t.Errorf("the environment %v becomes %v, want %v", tt.env, got, tt.want)
		}
	}
}
