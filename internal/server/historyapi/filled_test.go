package historyapi

import (
	"testing"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/testing/filled"
)

// A new field of the record must not be forgotten here.
func TestACheckpointHasEveryFieldOfTheRecord(t *testing.T) {
	var row history.Checkpoint
	filled.In(&row)
	if empty := filled.Empty(checkpointOf(row), "Kind", "APIVersion"); empty != nil {
		t.Errorf("these fields of the response are empty: %v", empty)
	}
}
