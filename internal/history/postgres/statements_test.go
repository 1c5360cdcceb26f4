package postgres

import (
	"github.com/jackc/pgx/v5"

	"github.com/clew-dev/clew/internal/history"
	"github.com/clew-dev/clew/internal/history/searchtext"
)

// SearchStatement is what Search sends, so that its plan can be looked at.
func SearchStatement(query history.SearchQuery) (string, pgx.NamedArgs) {
	return searchStatement(query, searchtext.Parse(query.Text).Text)
}

// TasksStatement is what Tasks sends.
func TasksStatement(query history.TaskQuery) (string, pgx.NamedArgs, error) {
	o, err := orderOf(query.Sort)
	if err != nil {
		return "", nil, err
	}
	statement, args := tasksStatement(query, o)
	return statement, args, nil
}
